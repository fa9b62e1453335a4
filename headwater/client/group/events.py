"""The events and effects of a group member's core (``member.py``).

Requests are effects that go to a broker; each comes back as its answer or as
:class:`RequestFailed`. The other effects are for the shell that reads records for the application.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.errors import HeadwaterError
from broker.model.groups import MemberView, PositionCommit, ToldClaim
from broker.model.offsets import Offset

# ── Events ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Polled:
    """The application asks for more: what it was given before is processed."""


@dataclass(frozen=True, slots=True)
class Began:
    """A partition without a usable position begins at ``offset``.

    The offset may come late, from a read that was stopped. So it counts only while the claim has no
    place, or if the place is to be replaced (``anew``).
    """

    key: str
    epoch: int  # of the claim
    offset: Offset
    anew: bool = False  # the log has not the claim's place any more


@dataclass(frozen=True, slots=True)
class Sought:
    """The application goes on at another offset, on purpose."""

    key: str
    offset: Offset


@dataclass(frozen=True, slots=True)
class CommitWanted:
    """The application commits all that it was given."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The application has stopped reading these partitions, as :class:`StopReading` asked."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CloseAsked:
    """The consumer ends; ``leave``: its partitions go to others at once, not after its session."""

    leave: bool


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to :class:`JoinRequest`."""

    coordinator: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Reported:
    """The answer to :class:`ReportRequest`: who coordinates now."""

    coordinator: str


@dataclass(frozen=True, slots=True)
class Beaten:
    """The answer to a :class:`BeatRequest` that was sent at ``sent_ms``."""

    view: MemberView
    sent_ms: int


@dataclass(frozen=True, slots=True)
class PositionsStored:
    """The answer to :class:`CommitRequest`."""


@dataclass(frozen=True, slots=True)
class Left:
    """The answer to :class:`LeaveRequest`."""


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request was refused, or has no answer."""

    request: Request
    error: HeadwaterError


Event = (
    Ticked
    | Polled
    | Began
    | Sought
    | CommitWanted
    | GivenUp
    | CloseAsked
    | Joined
    | Reported
    | Beaten
    | PositionsStored
    | Left
    | RequestFailed
)

# ── Effects ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Ask any broker for membership."""

    membership: int = 0  # how many this process has had before


@dataclass(frozen=True, slots=True)
class BeatRequest:
    """Send a heartbeat to the coordinator."""

    coordinator: str
    epoch: int


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """Tell any other broker that the coordinator does not answer."""

    coordinator: str


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Ask any broker to store positions, and to hand partitions over."""

    writes: tuple[PositionCommit, ...]


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """Ask any broker to end a membership, unless a later one has begun."""

    membership: int = 0


Request = JoinRequest | BeatRequest | ReportRequest | CommitRequest | LeaveRequest


@dataclass(frozen=True, slots=True)
class BeginReading:
    """Read these partitions, each from its position."""

    claims: tuple[ToldClaim, ...]


@dataclass(frozen=True, slots=True)
class StopReading:
    """Stop reading these partitions, tell the application, and answer with :class:`GivenUp`."""

    claims: tuple[ToldClaim, ...]


@dataclass(frozen=True, slots=True)
class ClaimsLost:
    """The member has lost these partitions before it could give them up."""

    claims: tuple[ToldClaim, ...]


@dataclass(frozen=True, slots=True)
class MembershipEnded:
    """The membership is over; with an error if it was not closed."""

    error: HeadwaterError | None


Effect = Request | BeginReading | StopReading | ClaimsLost | MembershipEnded
