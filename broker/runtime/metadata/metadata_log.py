"""The interface of the metadata log, whole and in parts for the shells that need less.

``MetadataLog`` is the whole interface. ``RaftMetadataLog`` implements it, over Headwater's own Raft
or over pysyncobj; the simulation also has an ideal log. A command is proposed as an object; the log
encodes it, once, by the limits and rules of this build.

These types use types of ``core``, so they are here and not in ``broker/ports``, which must not
import ``core``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.core.metadata.commands import Command
from broker.core.metadata.outcome import CommandReply
from broker.core.metadata.state import MetadataState
from broker.errors import HeadwaterError

# Called with None when a proposal is applied here or a barrier has passed; else with the error.
Answered = Callable[[HeadwaterError | None], None]
Subscriber = Callable[[int, MetadataState], None]  # gets the applied index and the state at it


class AppliedMetadata(Protocol):
    """The applied metadata of this broker."""

    @property
    def state(self) -> MetadataState:
        """The metadata state that is applied on this broker; another broker may know more."""


class SeenMetadata(AppliedMetadata, Protocol):
    """The applied index, which heartbeats carry, and their receiver, the active controller."""

    @property
    def applied_index(self) -> int:
        """Index of the newest entry that is applied on this broker."""

    @property
    def leader(self) -> str | None:
        """Broker id of the active controller, as far as this broker knows."""


class ProposingMetadata(AppliedMetadata, Protocol):
    """Proposals that do not wait. For pumps."""

    def propose_soon(self, command: Command, answered: Answered, *, timeout_ms: int) -> None:
        """Propose without waiting; ``answered`` is called once, on any thread, and must be quick.

        ``answered`` gets None when the command is applied here, so the change is in ``state`` by
        then. Else it gets the error that :meth:`WaitingMetadata.propose` would raise.
        """


class ControllerMetadata(Protocol):
    """For a controller, which acts only while its broker leads the Raft group."""

    @property
    def office(self) -> int | None:
        """The term that this member leads, or None, as far as it knows. A barrier proves it."""

    def barrier_soon(self, passed: Answered, *, timeout_ms: int) -> None:
        """Begin a barrier: when it has passed, all commands committed before are applied here."""

    def propose_soon(
        self, command: Command, answered: Answered, *, timeout_ms: int, office: int | None
    ) -> None:
        """Propose without waiting, and only as the leader of the term ``office``."""

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call ``subscriber(index, state)`` now and after every change, in order.

        Several changes may be reported by one call. The subscriber runs where commands are applied:
        it must be quick, must not raise, and must not wait for a proposal.
        """


class WaitingMetadata(AppliedMetadata, Protocol):
    """Proposals and barriers that wait. For threads."""

    def propose(self, command: Command, *, timeout_ms: int = ...) -> CommandReply:
        """Commit one command durably, apply it, return its reply. Blocks.

        Raises:
            CommitTimeoutError: it is not known whether the command was or will be applied.
            HeadwaterError: the state machine rejected the command, or it was not proposed.
        """

    def barrier(self, *, timeout_ms: int = ...) -> int:
        """Wait until all commands that were committed before this call are applied. Blocks.

        Returns the applied index.

        Raises:
            UnavailableError: no majority of the controllers confirmed it in time.
        """


class SharedMetadata(ProposingMetadata, WaitingMetadata, Protocol):
    """For a broker, whose threads wait and whose pumps do not."""


class MetadataLog(SeenMetadata, WaitingMetadata, Protocol):
    """The replicated log of metadata commands. Any thread."""

    @property
    def office(self) -> int | None:
        """See ``ControllerMetadata.office``."""

    def propose_soon(
        self,
        command: Command,
        answered: Answered,
        *,
        timeout_ms: int = ...,
        office: int | None = ...,
    ) -> None:
        """See ``ProposingMetadata.propose_soon``, and with ``office`` ``ControllerMetadata``."""

    def barrier_soon(self, passed: Answered, *, timeout_ms: int = ...) -> None:
        """See ``ControllerMetadata.barrier_soon``."""

    def subscribe(self, subscriber: Subscriber) -> None:
        """See ``ControllerMetadata.subscribe``."""
