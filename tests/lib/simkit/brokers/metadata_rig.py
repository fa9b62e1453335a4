"""One partition in the metadata's state machine, and commands made on its newest state.

Four brokers are registered; A leads the partition, B and C replicate it. Every command is encoded
and decoded on its way, as in a log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import (
    ChangeIsr,
    Command,
    ConfirmLeader,
    CreateStream,
    FenceBroker,
    LogAnswer,
    NameCandidate,
    RegisterBroker,
    decode,
    encode,
)
from broker.core.metadata.state import FEATURE_LEVEL_REPLICATED, MetadataState, PartitionState
from broker.errors import HeadwaterError
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig

UUID: Final = StreamUuid("00000000-0000-0000-0000-000000000001")
A, B, C, D = (BrokerId(name) for name in "abcd")
AT: Final[dict[str, Any]] = {"stream_uuid": UUID, "partition": 0}


class MetadataRig:
    """Applies commands; the newest session of each broker is known."""

    def __init__(
        self,
        replicas: tuple[BrokerId, ...] = (A, B, C),
        *,
        min_isr: int = 2,
        features_max: int = FEATURE_LEVEL_REPLICATED,
        **config: Any,
    ) -> None:
        self.state = MetadataState()
        self._features_max = features_max
        for broker in (A, B, C, D):
            self.register(broker)
        settings = StreamConfig(subject="s", **config)
        stream = Stream(name="s", uuid=UUID, config=settings, created_us=1, table_name="s")
        self.do(CreateStream(stream=stream, leader=A, assignment=(replicas,), min_isr=min_isr))

    def one(self) -> PartitionState:
        """Return the partition."""
        return self.state.partitions[UUID][0]

    @property
    def at(self) -> dict[str, Any]:
        """The fields of a command whose sender knows the newest state."""
        epochs = {
            "leader_epoch": self.one().leader_epoch,
            "partition_epoch": self.one().partition_epoch,
        }
        return {**AT, **epochs}

    def epoch(self, broker: BrokerId) -> BrokerEpoch:
        """Return the newest epoch of a broker."""
        return self.state.brokers[broker].epoch

    def do(self, command: Command) -> None:
        """Apply a command that has to succeed."""
        self.state, reply = apply(self.state, decode(encode(command)))
        assert not isinstance(reply, Rejected), reply.error

    def refused(self, command: Command) -> HeadwaterError:
        """Apply a command that has to be refused."""
        after, reply = apply(self.state, decode(encode(command)))
        assert isinstance(reply, Rejected)
        assert after is self.state
        return reply.error

    def register(self, broker: BrokerId, *, wiped: bool = False, **facts: Any) -> None:
        """Start a broker again on the folder that it had, a copy of it, or an empty one."""
        self.do(self._registration(broker, wiped=wiped, **facts))

    def refused_registration(self, broker: BrokerId, **facts: Any) -> HeadwaterError:
        """Start a broker again that may not; return why."""
        return self.refused(self._registration(broker, **facts))

    def _registration(
        self, broker: BrokerId, *, wiped: bool = False, **facts: Any
    ) -> RegisterBroker:
        before = self.state.brokers.get(broker)
        session = f"{broker}{0 if before is None else before.epoch}"
        known = () if wiped or before is None else (before.session,)
        return RegisterBroker(
            broker=broker,
            session=session,
            known_sessions=known,
            **{"features_max": self._features_max, **facts},
        )

    def fence(self, broker: BrokerId) -> None:
        """Lose a broker's session."""
        self.do(FenceBroker(broker=broker, broker_epoch=self.epoch(broker)))

    def isr(self, *members: BrokerId) -> ChangeIsr:
        """Return the leader's proposal of an ISR, all of it seen with their newest epochs."""
        return self.isr_of({member: self.epoch(member) for member in members})

    def isr_of(
        self, epochs: Mapping[BrokerId, BrokerEpoch], forgotten: tuple[BrokerId, ...] = ()
    ) -> ChangeIsr:
        """Return the leader's proposal of an ISR, seen with these epochs."""
        leader = self.one().leader
        assert leader is not None
        return ChangeIsr(
            **self.at,
            broker=leader,
            broker_epoch=self.epoch(leader),
            isr=epochs,
            forgotten=forgotten,
        )

    def answer(self, broker: BrokerId, end: int, *, last: int = 1, former: int = 0) -> LogAnswer:
        """Return how far a broker's log reaches, as one of its processes tells."""
        return LogAnswer(
            broker=broker,
            broker_epoch=BrokerEpoch(self.epoch(broker) - former),
            last_epoch=LeaderEpoch(last),
            log_end=Offset(end),
        )

    def name(self, broker: BrokerId, *answers: LogAnswer) -> NameCandidate:
        """Return the controller's choice, on these answers."""
        return NameCandidate(
            **self.at, candidate=broker, candidate_epoch=self.epoch(broker), answers=answers
        )

    def confirm(self, broker: BrokerId) -> ConfirmLeader:
        """Return the candidate's confirmation."""
        return ConfirmLeader(
            **AT,
            broker=broker,
            broker_epoch=self.epoch(broker),
            leader_epoch=self.one().leader_epoch,
        )

    def elect(self, broker: BrokerId, *answers: LogAnswer) -> None:
        """Name and confirm."""
        self.do(self.name(broker, *answers))
        self.do(self.confirm(broker))
