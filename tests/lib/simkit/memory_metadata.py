"""A metadata log in memory, of one broker: it applies what is proposed, at once."""

from __future__ import annotations

from dataclasses import replace

from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import Command
from broker.core.metadata.group_apply import without_stream
from broker.core.metadata.outcome import CommandReply
from broker.core.metadata.state import FEATURE_LEVEL_MAX, BrokerState, MetadataState
from broker.errors import HeadwaterError
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId
from broker.model.stream import Stream
from broker.runtime.metadata.metadata_log import Answered


class MemoryMetadata:
    """Implements ``SharedMetadata``."""

    def __init__(self, me: BrokerId) -> None:
        brokers = {me: BrokerState(epoch=BrokerEpoch(1), addresses={"liftbridge": "here:1"})}
        self.state = MetadataState(brokers=brokers, feature_level=FEATURE_LEVEL_MAX)

    def note(self, name: str, stream: Stream | None) -> None:
        """Know a stream; None: not any more."""
        streams = {one: found for one, found in self.state.streams.items() if one != name}
        if stream is None:
            self.state = without_stream(self.state, name)
        else:
            streams[name] = stream
        self.state = replace(self.state, streams=streams)

    def propose(self, command: Command, *, timeout_ms: int = 0) -> CommandReply:
        """See ``WaitingMetadata.propose``."""
        self.state, reply = apply(self.state, command)
        if isinstance(reply, Rejected):
            raise reply.error
        return reply

    def barrier(self, *, timeout_ms: int = 0) -> int:
        """See ``WaitingMetadata.barrier``: everything is applied."""
        return 0

    def propose_soon(self, command: Command, answered: Answered, *, timeout_ms: int) -> None:
        """See ``ProposingMetadata.propose_soon``."""
        try:
            self.propose(command, timeout_ms=timeout_ms)
        except HeadwaterError as error:
            answered(error)
        else:
            answered(None)
