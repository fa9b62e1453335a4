"""The records of the audit stream: JSON, each with the hash of the record before; and their check.

A broker process writes a chain: numbers from 0, and in each record the hash of the record before.
A record that was changed, left out or put in breaks its chain. A chain cannot show that its newest
records are missing. A batch whose outcome was lost is sent again, so a record may be stored twice;
then it counts once.

Callers choose some of the texts, so each text of a note is bounded here, and the record with them:
none is longer than those that the check takes.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from broker.model.access import told

VERSION: Final = 1
_FIRST: Final = ""  # the hash before the first record
_RECENT_MAX: Final = 1024  # records that may be repeated
_PROBLEMS_MAX: Final = 1000
RECORD_BYTES_MAX: Final = 64 * 1024
_READ_BYTES_MAX: Final = 1024 * 1024  # a longer record is a problem, and still has its place
_TEXT_BYTES_MAX: Final = 2048  # as JSON
_RESOURCES_MAX: Final = 17
_OWN_TEXTS: Final = ("broker", "principal", "via", "peer", "door", "call", "result")
_OBJECTS_CHARS: Final = 512  # what a note takes beside its texts


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

    @property
    def weight(self) -> int:
        """Stand for the memory that the note takes, in characters."""
        texts = (*(getattr(self, name) for name in _OWN_TEXTS), *self.resources)
        return _OBJECTS_CHARS + sum(len(one) for one in texts)


def bounded(note: AuditNote) -> AuditNote:
    """Return the note with each text cut, and as many resources as a record has room for."""
    texts: dict[str, Any] = {
        name: told(getattr(note, name), _TEXT_BYTES_MAX) for name in _OWN_TEXTS
    }
    resources = tuple(told(one, _TEXT_BYTES_MAX) for one in note.resources[:_RESOURCES_MAX])
    return replace(note, **texts, resources=resources)


def in_place_of(note: AuditNote, refused: bytes) -> AuditNote:
    """Return a short note that says that the stream takes no record as long as the refused one."""
    size, digest = len(refused), hashlib.sha256(refused).hexdigest()
    said = f"not kept here: the stream refused a record of {size} bytes, SHA-256 {digest}"
    return replace(note, resources=(said,))


def encode_note(
    note: AuditNote, *, chain: str, number: int, before: str, lost: int
) -> tuple[bytes, str]:
    """Return the value of a record and its hash; ``lost`` notes before it could not be kept.

    The value has at most ``RECORD_BYTES_MAX`` bytes, whatever the note has.
    """
    body = {
        "v": VERSION,
        "chain": chain,
        "number": number,
        "before": before,
        "lost": lost,
        **asdict(bounded(note)),
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
        chain, number, before = told(body["chain"]), body["number"], body["before"]
        if hashlib.sha256(_canonical(body)).hexdigest() != stored:
            self._report(
                where, f"{chain}/{number} was changed: its hash does not match its content"
            )
            return
        if value is not None and len(value) > RECORD_BYTES_MAX:  # of an older broker
            self._report(
                where, f"{chain}/{number} has {len(value)} bytes, and no record has so many"
            )
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
    if value is None or len(value) > _READ_BYTES_MAX:
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
