"""What a broker and a member of a consumer group tell each other: claims, positions, commits.

A *claim* is a member's right to read one partition for its group, under the group epoch at which it
got the claim. A *position* is the next offset that the group will read: everything below it was
processed. The values are those of the Flight actions, as JSON has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from broker.errors import EnvelopeError, InvalidRequestError
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset

SESSION_MS_MIN: Final = 1_000
SESSION_MS_MAX: Final = 3_600_000
MEMBER_STREAMS_MAX: Final = 1_000
COMMIT_WRITES_MAX: Final = 1_000  # positions in one commit
NAME_BYTES_MAX: Final = 256  # of a group, a member or a cursor
STORED_NAME_CHARS_MAX: Final = 256  # of one that older metadata may have
NO_LEADER_EPOCH: Final = -1  # of a position that no record was read for


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldPosition:
    """A group's position in a partition."""

    offset: Offset
    leader_epoch: int = NO_LEADER_EPOCH  # of the record before it
    lost: bool = False  # the stream no longer has the history that the position belongs to


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldClaim:
    """One partition that a member may read, or has to give up."""

    stream: str
    stream_uuid: StreamUuid
    partition: int
    epoch: int  # fences commits of earlier holders
    wanted: bool = False  # another member waits for the partition: commit, and give the claim up
    position: ToldPosition | None = None  # None: the group has never committed one

    @property
    def key(self) -> str:
        """The partition as the metadata names it."""
        return partition_key(self.stream_uuid, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """What the coordinator answers to a heartbeat."""

    epoch: int  # of the group
    coordinator: str
    settled: bool  # no partition is on its way from one member to another
    claims: tuple[ToldClaim, ...] | None = None  # None: as at the epoch that the member knows

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MemberView:
        """Rebuild from :meth:`to_dict`; raises EnvelopeError for anything else."""
        with _told("a member's view of its group"):
            claims = values["claims"]
            return cls(
                epoch=values["epoch"],
                coordinator=values["coordinator"],
                settled=values["settled"],
                claims=None if claims is None else tuple(map(_claim, claims)),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionCommit:
    """A member's new position in one partition that it has claimed."""

    stream_uuid: StreamUuid
    partition: int
    epoch: int  # of the claim
    number: int  # grows with each commit under this claim
    offset: int | None  # None: keep the position, as when a claim is released unread
    leader_epoch: int = NO_LEADER_EPOCH
    back: bool = False  # the application sought back on purpose: the position may move back
    release: bool = False  # give the partition to the member that waits for it

    @property
    def key(self) -> str:
        """The partition as the metadata names it."""
        return partition_key(self.stream_uuid, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionReset:
    """A new position that an operator chose."""

    stream_uuid: StreamUuid
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group, for people."""

    member: str
    streams: tuple[str, ...]
    owner: str = ""  # user, host and process
    static: bool = False
    session_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPartition:
    """A group's progress in one partition. The partition's leader knows the partition's end."""

    stream: str
    stream_uuid: StreamUuid
    partition: int
    offset: int | None  # the position; None: none was committed
    member: str = ""  # that reads the partition; empty: nobody
    heir: str = ""  # the member that waits for it
    epoch: int = 0  # of the claim
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A consumer group: members, partitions, positions."""

    group: str
    kind: str  # headwater, liftbridge, or empty if it has no member
    epoch: int
    coordinator: str
    members: tuple[GroupMember, ...]
    partitions: tuple[GroupPartition, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GroupDescription:
        """Rebuild from :meth:`to_dict`; raises EnvelopeError for anything else."""
        with _told("the description of a group"):
            members = (
                GroupMember(**{**one, "streams": tuple(one["streams"])})
                for one in values["members"]
            )
            partitions = (GroupPartition(**one) for one in values["partitions"])
            return cls(**{**values, "members": tuple(members), "partitions": tuple(partitions)})


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn what a JSON value of another shape raises into EnvelopeError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise EnvelopeError(f"the JSON is not {what}: {cause!r}") from cause


def check_name(text: str, what: str) -> str:
    """Return a name of a group, a member or a cursor that may be new; raises InvalidRequestError.

    People read the names on terminals, so a name has no control characters.
    """
    if not text.isprintable() or not 0 < len(text.encode(errors="replace")) <= NAME_BYTES_MAX:
        raise InvalidRequestError(
            f"{what} must be a printable text of 1 to {NAME_BYTES_MAX} bytes", field=what
        )
    return text


def check_stored_names(**names: str) -> None:
    """Refuse texts that no group, member or broker has, however old its metadata is.

    Names were bounded by characters before they were bounded by bytes.

    Raises:
        InvalidRequestError: a text is longer.
    """
    for what, text in names.items():
        if len(text) > STORED_NAME_CHARS_MAX:
            raise InvalidRequestError(
                f"{what} must be a text of at most {STORED_NAME_CHARS_MAX} characters", field=what
            )


def partition_key(stream_uuid: str, partition: int) -> str:
    """Return the name of a partition in the metadata of groups."""
    return f"{stream_uuid}/{partition}"


def _claim(values: Mapping[str, Any]) -> ToldClaim:
    position = values["position"]
    told = None if position is None else ToldPosition(**position)
    return ToldClaim(**{**values, "position": told})
