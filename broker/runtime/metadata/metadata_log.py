"""The interface of the metadata log, and the parts of it that a shell may need.

``MetadataLog`` is the whole. ``RaftMetadataLog`` implements it, over Headwater's own Raft or over
pysyncobj; in the simulation also an ideal log. A command is proposed as an object; the log encodes
it, once, with the limits and rules of this build.

The types above ``core`` live here and not in ``broker/ports``, which knows no core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.core.metadata.commands import Command
from broker.core.metadata.outcome import CommandReply
from broker.core.metadata.state import MetadataState
from broker.errors import HeadwaterError

# Hears None once a proposal is applied here, or once a barrier has passed; else the error.
Answered = Callable[[HeadwaterError | None], None]
Subscriber = Callable[[int, MetadataState], None]  # the applied index, and the state there


class AppliedMetadata(Protocol):
    """What is applied on this broker."""

    @property
    def state(self) -> MetadataState:
        """The metadata state that is applied on this broker; another broker may know more."""


class SeenMetadata(AppliedMetadata, Protocol):
    """What a member tells of itself with each heartbeat, and to whom."""

    @property
    def applied_index(self) -> int:
        """Index of the newest entry that is applied on this broker."""

    @property
    def leader(self) -> str | None:
        """The active controller, as far as this broker knows: the id of a broker."""


class ProposingMetadata(AppliedMetadata, Protocol):
    """For pumps, which do not wait."""

    def propose_soon(self, command: Command, answered: Answered, *, timeout_ms: int) -> None:
        """Propose without waiting; ``answered`` is called once, on any thread, and must be quick.

        It hears None once the command is applied here: whoever has that answer finds the change in
        ``state``. Else it hears what :meth:`WaitingMetadata.propose` would raise.
        """


class ControllerMetadata(Protocol):
    """For a controller, which acts only while its member leads the group."""

    @property
    def office(self) -> int | None:
        """The term in which this member leads, as far as it knows; a barrier proves it."""

    def barrier_soon(self, passed: Answered, *, timeout_ms: int) -> None:
        """Begin a barrier: once it has passed, what was committed before is applied here."""

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
    """For threads that may wait."""

    def propose(self, command: Command, *, timeout_ms: int = ...) -> CommandReply:
        """Commit one command durably, apply it, return its reply. Blocks.

        Raises:
            CommitTimeoutError: it is not known whether the command was or will be applied.
            HeadwaterError: the state machine rejected the command; or it was not proposed.
        """

    def barrier(self, *, timeout_ms: int = ...) -> int:
        """Wait until all commands that were committed before this call are applied. Blocks.

        Returns the applied index.

        Raises:
            UnavailableError: no majority of the controllers confirmed it in time.
        """


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
