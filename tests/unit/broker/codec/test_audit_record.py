"""The chain of the audit: every change is found, and a repeated batch is not one."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from broker.codec.audit_record import AuditCheck, AuditNote, encode_note


def note(number: int) -> AuditNote:
    """Return what happened."""
    return AuditNote(
        at_us=number, broker="b", principal="ann", via="token", peer="here", door="flight",
        call="do_get", resources=("stream:s",), result="ok",
    )  # fmt: skip


def chain(name: str, count: int) -> list[bytes]:
    """Return the records of a chain."""
    found, before = [], ""
    for number in range(count):
        value, before = encode_note(
            note(number), chain=name, number=number, before=before, lost=int(number == 2)
        )
        found.append(value)
    return found


def check(values: list[bytes | None]) -> AuditCheck:
    """Check records."""
    found = AuditCheck()
    for place, value in enumerate(values):
        found.take(value, str(place))
    return found


def test_whole_chains_are_whole() -> None:
    """Of several brokers, mixed, and with a batch that was sent twice."""
    one, two = chain("one", 5), chain("two", 3)
    found = check([one[0], two[0], one[1], two[1], *one[1:4], two[2], *one[3:]])
    assert found.problems == []
    assert (found.records_count, found.chains_count, found.lost_count) == (8, 2, 2)


def _changed(value: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(value), **fields}, sort_keys=True).encode()


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ([*chain("c", 2), *chain("c", 5)[3:]], "2"),  # one was left out
        (chain("c", 5)[1:], "0"),  # the first was
        ([chain("c", 2)[1], chain("c", 2)[0]], "0"),  # the order is another
        ([_changed(chain("c", 1)[0], principal="bob")], "0"),
        ([_changed(chain("c", 1)[0], hash="0" * 64)], "0"),
        ([b"{}"], "0"),
        ([b"[" * 100_000], "0"),
        ([None], "0"),
        ([_changed(chain("c", 1)[0], number=True)], "0"),
    ],
)
def test_what_was_done_to_a_chain_is_found(values: list[bytes | None], place: str) -> None:
    """With the place where it was found."""
    assert check(values).problems[0].startswith(f"{place}: ")


def test_another_chain_of_a_thief_does_not_fit_into_ours() -> None:
    """A record that was put in with a right hash has not the hash before it."""
    ours = chain("c", 3)
    forged, _ = encode_note(note(9), chain="c", number=1, before="f" * 64, lost=0)
    assert check([ours[0], forged, ours[2]]).problems


def test_a_record_that_is_too_long_is_a_problem_and_keeps_its_place() -> None:
    """An older broker wrote it: what follows it is still told from what was tampered with."""
    values = chain("c", 3)
    body = json.loads(values[1])
    del body["hash"]
    body["resources"] = ["subject:" + "x" * 100_000]
    digest = hashlib.sha256(_canonical(body)).hexdigest()
    long = _canonical({**body, "hash": digest})
    after, _ = encode_note(note(2), chain="c", number=2, before=digest, lost=0)
    found = check([values[0], long, after])
    assert len(found.problems) == 1
    assert found.problems[0].startswith("1: c/1 has 100")
    assert found.records_count == 3
    assert len(check([values[0], long.replace(b"xx", b"xy", 1), after]).problems) > 1


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
