"""Publishers over Arrow Flight: they know a batch's answer by its place in the call alone."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from broker.codec.flight.protocol import StreamPath, decode_ack, encode_put_mark, is_ready
from broker.errors import HeadwaterError, InvalidRequestError, ShuttingDownError
from broker.model.ids import ProducerId
from broker.model.records import AckPolicy, AppendResult
from simkit.house.clients import Pending, PublishAnswer, Publisher
from simkit.house.flight import Pipe

_NONSENSE: Final = b"no mark"  # metadata that every broker refuses
_NONSENSE_SHARE: Final = 0.08
_FINISH_SHARE: Final = 0.03  # a client finishes its call while answers are under way


class FlightPublisher(Publisher):
    """Publishes by calls; unanswered batches are sent again, in order, by a new call.

    Answers name no batch: the first answer of a call is that of its first batch.
    """

    def __init__(self, *given: Any, stream: str, **options: Any) -> None:
        super().__init__(*given, **options)
        self._stream = stream
        self._is_identified = self.policy is AckPolicy.ALL
        self._call = 0  # the number of the present call, or the last
        self._is_open = False  # the call was neither ended nor given up
        self._finishes = False  # it gets no more batches
        self._to = ""
        self._is_ready = True
        self._in, self._out = Pipe(), Pipe()
        self._unanswered: deque[int | None] = deque()  # by request; None: has to be refused

    def _send_late_ones_again(self) -> None:
        if any(map(self._is_late, self.pending)):
            self._give_up()
            for one in self.pending:
                self._send_again(one)

    def _begin_again(self) -> None:
        self._give_up()
        super()._begin_again()

    def _give_up(self) -> None:
        if self._is_open:
            self._world.note("Flight call given up")
            self._send_frame(("gone",))
        self._is_open, self._target = False, None

    def _send(self, one: Pending) -> None:
        if self._is_open and self._finishes:
            return  # until this call has ended, or takes too long
        if not self._is_open:
            self._begin_call()
        if self._world.chance(_NONSENSE_SHARE):
            self._unanswered.append(None)
            self._send_frame(("batch", one.value, _NONSENSE))
        self._requests += 1
        self._sent[self._requests] = one
        self._unanswered.append(self._requests)
        mark = None
        if self.policy is AckPolicy.ALL:
            producer_id = ProducerId(self._number + 1000 * self._lives)
            mark = encode_put_mark(producer_id, one.sequence)
        self._send_frame(("batch", one.value, mark))
        if self._world.chance(_FINISH_SHARE):
            self._world.note("Flight call finished by its client")
            self._finish()

    def _finish(self) -> None:
        if not self._finishes:
            self._finishes = True
            self._send_frame(("finish",))

    def _begin_call(self) -> None:
        self._target = self._target or self._guess()
        self._call += 1
        self._to = self._target
        self._is_open, self._finishes = True, False
        self._is_ready = self.policy is not AckPolicy.NONE
        self._in, self._out = Pipe(), Pipe()
        self._unanswered.clear()
        path = StreamPath(
            stream=self._stream,
            partition=self._partition_id.number,
            stream_uuid=self._partition_id.stream_uuid,
            acks=self.policy,
        )
        self._send_frame(("open", path.to_path()))

    def _send_frame(self, frame: Any) -> None:
        message = (self._call, self._out.number(), frame)
        self._network.send(self.name, self._to, ("flight", message))

    def receive(self, sender: str, message: tuple[str, Any]) -> None:
        """Take a frame of the present call; what an earlier one says is not heard any more."""
        kind, (call, number, frame) = message
        assert kind == "flight", "nothing else comes to this client"
        if call != self._call or not self._is_open or sender != self._to:
            return
        for one in self._in.arrived(number, frame):
            self._take_frame(one)

    def _take_frame(self, frame: Any) -> None:
        match frame:
            case ("frame", bytes(data), _) if is_ready(data) and not self._is_ready:
                self._is_ready = True
            case ("frame", bytes(data), str(process)):
                self._take_answer(decode_ack(data), process)
            case ("end", error):
                self._ended(error)
            case _:
                raise AssertionError(f"no broker says this: {frame}")

    def _take_answer(self, answer: AppendResult | HeadwaterError | None, process: str) -> None:
        if answer is None:
            self._world.note("Flight client finished because its broker closes")
            self._finish()
            return
        if self.policy is AckPolicy.NONE:
            assert isinstance(answer, HeadwaterError), f"acknowledged under NONE: {answer}"
            return
        assert self._unanswered, f"{answer} answers nothing"
        request = self._unanswered.popleft()
        if request is None:
            refused = type(answer) in (InvalidRequestError, ShuttingDownError)
            assert refused, f"what cannot be stored was answered with {answer}"
            self._world.note("Flight batch refused in the midst of others")
            return
        error = answer if isinstance(answer, HeadwaterError) else None
        assert type(error) is not InvalidRequestError, f"a good batch was refused: {error}"
        if error is not None:
            self._world.note(f"Flight publish refused: {type(error).__name__}")
        result = answer if isinstance(answer, AppendResult) else None
        self._hear(
            PublishAnswer(
                number=request,
                offset=-1 if result is None else result.base_offset,
                leader_epoch=0 if result is None else result.leader_epoch,
                duplicate=result is not None and result.duplicate,
                error=error,
                node=process,
            )
        )

    def _ended(self, error: HeadwaterError | None) -> None:
        """Hear that a call is over; one that ends well has answered every batch."""
        self._is_open, self._target = False, None
        if error is not None:
            self._world.note(f"Flight call refused: {type(error).__name__}")
        elif self.policy is not AckPolicy.NONE:
            assert not self._unanswered, f"ended, and did not answer {self._unanswered}"
