"""The records of the audit stream: JSON, each with the hash of the record before; and their check.

A broker process writes a chain: numbers from 0, and in each record the hash of the record before.
A record that was changed, left out or put in breaks its chain. A chain cannot show that its newest
records are missing. A batch whose outcome was lost is sent again, so a record may be stored twice;
then it counts once.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any, Final

VERSION: Final = 1
_FIRST: Final = ""  # the hash before the first record
_RECENT_MAX: Final = 1024  # records that may be repeated
_PROBLEMS_MAX: Final = 1000
_VALUE_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditNote:
    """One call at a door: who called from where, the call, its resources, and the result."""

    at_us: int
    broker: str
    principal: str
    via: str
    peer: str
    door: str
    call: str
    resources: tuple[str, ...]  # kind:name
    result: str  # ok, or the class of the error


def encode_note(
    note: AuditNote, *, chain: str, number: int, before: str, lost: int
) -> tuple[bytes, str]:
    """Return the value of a record and its hash; ``lost`` notes before it could not be kept."""
    body = {
        "v": VERSION,
        "chain": chain,
        "number": number,
        "before": before,
        "lost": lost,
        **asdict(note),
    }
    digest = hashlib.sha256(_canonical(body)).hexdigest()
    return _canonical({**body, "hash": digest}), digest


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


class AuditCheck:
    """Checks the records of the audit stream in their order, and collects the problems."""

    def __init__(self) -> None:
        self.records_count = 0
        self.lost_count = 0
        self.problems: list[str] = []
        self._chains: dict[str, tuple[int, str]] = {}  # the newest number and hash of each
        self._recent: OrderedDict[tuple[str, int], str] = OrderedDict()

    @property
    def chains_count(self) -> int:
        """How many chains there are: one for each broker process that wrote records."""
        return len(self._chains)

    def take(self, value: bytes | None, where: str) -> None:
        """Check one record; ``where`` is its partition and offset, for the problem."""
        body = _parsed(value)
        if body is None:
            self._report(where, "is not an audit record")
            return
        stored = body.pop("hash")
        chain, number, before = body["chain"], body["number"], body["before"]
        if hashlib.sha256(_canonical(body)).hexdigest() != stored:
            self._report(
                where, f"{chain}/{number} was changed: its hash does not match its content"
            )
            return
        if self._recent.get((chain, number)) == stored:
            return  # the same record, sent again
        expected, newest = self._chains.get(chain, (-1, _FIRST))
        if number != expected + 1:
            self._report(where, f"{chain}/{number} follows {chain}/{expected}: records are missing")
        elif before != newest:
            self._report(where, f"{chain}/{number} does not follow the record before it")
        self._chains[chain] = (number, stored)
        self._recent[chain, number] = stored
        if len(self._recent) > _RECENT_MAX:
            self._recent.popitem(last=False)
        self.records_count += 1
        self.lost_count += body["lost"]

    def _report(self, where: str, text: str) -> None:
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(f"{where}: {text}")


def _parsed(value: bytes | None) -> dict[str, Any] | None:
    if value is None or len(value) > _VALUE_BYTES_MAX:
        return None
    try:
        body = json.loads(value)
    except (ValueError, RecursionError):
        return None
    kinds = {"chain": str, "number": int, "before": str, "lost": int, "hash": str, "v": int}
    if not isinstance(body, dict) or body.get("v") != VERSION:
        return None
    if any(type(body.get(name)) is not kind for name, kind in kinds.items()):
        return None
    return body
