"""Partitions that take no records: paused or read-only, as an operator decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class PausesApi(Protocol):
    """Stops and allows writes to partitions, durably. The methods block; any thread.

    ``partitions`` are numbers; none of them means all partitions of the stream. This broker obeys
    before a call returns, the other brokers when they apply the metadata: usually within
    milliseconds. Every call may be repeated.

    All raise UnknownStreamError, UnknownPartitionError, FeatureLevelError and UnavailableError.
    """

    def pause(self, name: str, partitions: Sequence[int] = (), *, resume_all: bool = False) -> None:
        """Pause partitions: they take no records, and following subscribers are sent away.

        With ``resume_all`` the next publish to the stream resumes all its partitions.
        """

    def resume(self, name: str, partitions: Sequence[int] = ()) -> None:
        """Let paused partitions take records again."""

    def set_readonly(
        self, name: str, partitions: Sequence[int] = (), *, readonly: bool = True
    ) -> None:
        """Make partitions read-only, or let them take records again."""

    def rests(self, name: str, partition: int) -> bool:
        """Tell whether a publisher must :meth:`wake` the partition first. Does not block."""

    def wake(self, name: str, partition: int) -> None:
        """Resume a paused partition, because somebody publishes to it; quick if it is not paused.

        All partitions of the stream are resumed if it was paused with ``resume_all``.
        """
