"""The calls of :class:`Client` that are about consumer groups."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from broker.model.offsets import Offset
from headwater.client.brokers import Brokers
from headwater.client.fetch import Fetch
from headwater.client.owner import default_owner

if TYPE_CHECKING:  # loaded when they are used: most programs are no members of groups
    from broker.model.groups import GroupDescription, PositionReset
    from headwater.client.group.calls import MemberCalls
    from headwater.client.group.consumer import CallBack, GroupConsumer


class GroupClient(ABC):
    """The part of a client that is about consumer groups."""

    _brokers: Brokers

    @abstractmethod
    def fetch(self, stream: str, partition: int = 0, /, *args: Any, **settings: Any) -> Fetch:
        """Read a partition."""

    @abstractmethod
    def _high_watermark(self, stream: str, partition: int) -> Offset:
        """Return the end of what is committed in a partition."""

    def consumer(
        self,
        streams: str | Sequence[str],
        *,
        group: str,
        member_id: str | None = None,
        columns: Sequence[str] | None = None,
        auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest",
        commit_ms: int | None = 5_000,
        session_ms: int = 10_000,
        processing_ms_max: int = 300_000,
        on_assigned: CallBack | None = None,
        on_revoked: CallBack | None = None,
        on_lost: CallBack | None = None,
    ) -> GroupConsumer:
        """Read streams as a member of a consumer group, which shares their partitions.

        The members share the partitions, each from the group's position (docs/groups.md).

        Args:
            streams: One stream's name, or several.
            group: The group's name.
            member_id: A name of this member's own. A process that comes back under it within the
                session has the same partitions again, and nobody else stops. Two processes must not
                use one name: the newer one replaces the other.
            columns: As in :meth:`fetch`.
            auto_offset_reset: Where to begin without a position, or if the records at the position
                are not there any more.
            commit_ms: The time between two commits of processed records; None: only
                :meth:`GroupConsumer.commit` commits.
            session_ms: A member that is silent for so long loses its partitions to others.
            processing_ms_max: So does one that does not ask for records for so long.
            on_assigned: Called with partitions that this member begins to read.
            on_revoked: Called with partitions that it is about to give up; it may commit there.
            on_lost: Called with partitions that others may read already; default: ``on_revoked``.

        Raises:
            InvalidRequestError: an argument is out of its bounds.

        The membership begins in the background: other errors are raised by the iteration.
        """
        from headwater.client.group.consumer import GroupConsumer  # noqa: PLC0415
        from headwater.client.group.held import MemberTerms  # noqa: PLC0415
        from headwater.client.group.opening import Opening, check_terms  # noqa: PLC0415

        names = [streams] if isinstance(streams, str) else list(streams)
        check_terms(names, group, auto_offset_reset, session_ms, commit_ms)
        member = member_id or f"member-{secrets.token_hex(8)}"
        terms = MemberTerms(
            session_ms=session_ms, commit_ms=commit_ms, processing_ms_max=processing_ms_max
        )
        return GroupConsumer(
            self._calls(names, group, member, session_ms, static=member_id is not None),
            Opening(self.fetch, self._high_watermark, reset=auto_offset_reset, columns=columns),
            terms,
            member_id=member,
            static=member_id is not None,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_lost=on_lost,
        )

    def _calls(
        self, streams: Sequence[str], group: str, member: str, session_ms: int, *, static: bool
    ) -> MemberCalls:
        from headwater.client.group.calls import MemberCalls  # noqa: PLC0415

        return MemberCalls(
            self._brokers,
            group=group,
            member=member,
            instance=secrets.token_hex(16),
            streams=streams,
            session_ms=session_ms,
            static=static,
            owner=default_owner(),
        )

    def groups(self) -> list[str]:
        """Return the names of the consumer groups that have members or positions."""
        return [one["group"] for one in self._brokers.action("list_groups", {})]

    def describe_group(self, group: str) -> GroupDescription:
        """Return a group's members, partitions and positions; raises UnknownGroupError."""
        from broker.model.groups import GroupDescription  # noqa: PLC0415

        (told,) = self._brokers.action("describe_group", {"group": group})
        return GroupDescription.from_dict(told)

    def reset_group(self, group: str, positions: Sequence[PositionReset]) -> None:
        """Set positions of a group, whose members must not read these streams meanwhile.

        Raises:
            GroupInUseError: they do.
            UnknownPartitionError, InvalidRequestError, FeatureLevelError.
        """
        from broker.model.groups import COMMIT_WRITES_MAX  # noqa: PLC0415

        told = [asdict(one) for one in positions]
        for at in range(0, len(told), COMMIT_WRITES_MAX):
            body = {"group": group, "positions": told[at : at + COMMIT_WRITES_MAX]}
            self._brokers.action("reset_group", body)

    def delete_group(self, group: str) -> None:
        """Forget the positions of a group; raises UnknownGroupError, GroupInUseError."""
        self._brokers.action("delete_group", {"group": group})
