"""To which addresses a broker sends its answers to publishers on NATS. Pure.

A publisher names the address: the reply subject of its message, or the AckInbox of an envelope. The
broker may publish where the publisher may not. So an address is not answered where the answer would
be a record, a request or a command of somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from broker.model.stream import Stream
from broker.model.subjects import INBOX, matches
from broker.model.tenant import Tenant, tenant_of

# Of a client's own replies, and of JetStream's consumers: an answer there means "acknowledged".
_ALWAYS: Final = (f"{INBOX}.", "$JS.ACK.")


class ReplyAddresses:
    """Decides for one broker. One thread.

    With access off only NATS's own subjects and those of the brokers get no answer. With access on
    a subject on which a stream listens gets none either, and one that another tenant may attach to.
    """

    def __init__(self, brokers_subjects: Iterable[str], *, guarded: bool) -> None:
        """``brokers_subjects`` are patterns; ``guarded``: access is on."""
        self._brokers_subjects = tuple(brokers_subjects)
        self._guarded = guarded
        self._known: Mapping[str, Stream] | None = None  # the streams of the two fields below
        self._literal: frozenset[str] = frozenset()
        self._patterns: tuple[str, ...] = ()

    def takes(
        self,
        stream: Stream,
        address: str,
        *,
        streams: Mapping[str, Stream],
        tenants: Mapping[str, Tenant],
    ) -> bool:
        """Tell whether a publisher of ``stream`` gets its answer at this address, a NATS subject.

        ``streams`` and ``tenants``, by name, are values: what has changed is another mapping.
        """
        if address.startswith(_ALWAYS):
            return True
        if address.startswith("$") or _is_of(self._brokers_subjects, address):
            return False
        if not self._guarded:
            return True
        self._learn(streams)
        if address in self._literal or _is_of(self._patterns, address):
            return False
        own = tenant_of(tenants, stream.name)
        return not any(
            _is_of(other.subjects, address) for other in tenants.values() if other is not own
        )

    def _learn(self, streams: Mapping[str, Stream]) -> None:
        if streams is self._known:
            return
        subjects = [one for stream in streams.values() for one in stream.config.subjects]
        self._known = streams
        self._patterns = tuple(one for one in subjects if "*" in one or ">" in one)
        self._literal = frozenset(subjects).difference(self._patterns)


def _is_of(patterns: Iterable[str], address: str) -> bool:
    return any(matches(pattern, address) for pattern in patterns)
