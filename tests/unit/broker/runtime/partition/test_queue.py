"""The bounds of the work that waits for a partition's owner; taken work makes room."""

from __future__ import annotations

import pytest

from broker.runtime.partition.commit_scheduler import CommitScheduler
from broker.runtime.partition.queue import MESSAGES_MAX, TurnQueue, Work


class _Owner:
    """An owner whose turns a test takes by hand."""

    def run_turn(self) -> None:
        raise AssertionError("the test takes the turns")


def _queue() -> TurnQueue:
    def crashed(crash: BaseException) -> None:
        raise crash

    return TurnQueue(_Owner(), CommitScheduler(1, crashed), "s/0")  # no thread is started


@pytest.mark.parametrize("held", [True, False])
def test_messages_that_were_taken_make_room_for_others(held: bool) -> None:
    """This holds while writes wait: a leader that waits for its claim still serves followers."""
    queue = _queue()
    for _ in range(3):
        assert all(queue.offer(lambda: None, 1000) for _ in range(MESSAGES_MAX))
        assert not queue.offer(lambda: None, 1000), "there is a bound"
        taken = 0
        while True:
            work = Work()
            queue.take_calls(work, held=held)
            if not work.calls:
                break
            taken += len(work.calls)
        assert taken == MESSAGES_MAX
