"""What a life must not share with the process that runs it: ids, draws, the log, a short queue."""

from __future__ import annotations

import logging
import random
import secrets
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from broker.errors import NoAnswerError
from broker.ports.pumps import PumpTurn
from broker.ports.system import Clock
from broker.runtime.cluster import member
from broker.runtime.partition import queue as turn_queue
from broker.runtime.pumps import Answer
from simkit.replacing import replaced, together


@contextmanager
def own_world(seed: int, *, with_flight: bool) -> Iterator[None]:
    """Draw ids from the seed, say nothing, and let queues be short now and then."""
    rng = random.Random(f"ids {seed}")

    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    queue_bytes_max = turn_queue.QUEUE_BYTES_MAX
    if with_flight:
        queue_bytes_max = rng.choice((500, queue_bytes_max))
    silent = structlog.make_filtering_bound_logger(logging.CRITICAL)
    before = structlog.get_config()
    structlog.configure(wrapper_class=silent)
    try:
        with together(
            replaced(uuid, "uuid4", uuid4),
            replaced(turn_queue, "MESSAGES_MAX", rng.choice((24, 1024))),
            replaced(secrets, "token_hex", lambda size: rng.randbytes(size).hex()),
            replaced(random, "uniform", rng.uniform),
            replaced(turn_queue, "QUEUE_BYTES_MAX", queue_bytes_max),
            replaced(member, "wait_for_answer", answer_at_once),
        ):
            yield
    finally:
        structlog.configure(**before)


def answer_at_once(
    clock: Clock, begin: Callable[[Callable[[], None], Callable[[Answer], None]], PumpTurn]
) -> Answer:
    """Take one turn of a pump, in place of ``wait_for_answer``: no thread waits in a life.

    A cut needs an answer of another broker if a partition that its broker led has another leader by
    the time that the cut's lease is recorded.

    Raises:
        NoAnswerError: the pump has no answer after its first turn.
    """
    answers: list[Answer] = []
    begin(lambda: None, answers.append)(clock.monotonic_ms())
    if not answers:
        raise NoAnswerError("the answer would have to be waited for")
    return answers[0]
