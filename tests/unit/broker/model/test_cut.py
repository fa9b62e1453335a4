"""A cut: its valid values, the ranges of a narrowed cut, and its text with a checksum."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import InvalidCutError
from broker.model import cut as cut_module
from broker.model.cut import Cut, Lease, PartitionCut
from broker.model.cut_positions import CutPosition
from broker.model.epochs import LeaderEpoch
from broker.model.ids import LeaseId, StreamUuid
from broker.model.offsets import OFFSET_MAX, Offset

UUID = StreamUuid("0b5e0f3e-5a0c-4c7c-9a54-1f1f5a6b7c8d")


def part(
    start: int = 10, cold: int = 20, hot: int = 30, *, until: int | None = None, number: int = 0
) -> PartitionCut:
    """Return one partition's part of a cut."""
    return PartitionCut(
        partition=number,
        start=Offset(start),
        cold_end=Offset(cold),
        hot_end=Offset(hot),
        leader_epoch=LeaderEpoch(1),
        until=None if until is None else Offset(until),
        lineage_id="a" * 32,
    )


def cut(*partitions: PartitionCut, **values: Any) -> Cut:
    """Return a cut of these parts."""
    fields: dict[str, Any] = {
        "cluster": "c",
        "stream": "s",
        "stream_uuid": UUID,
        "subject": "s",
        "table_uri": "file:///t",
        "table_version": 3,
        "partitions": partitions or (part(),),
        "taken_us": 1,
        "lease": Lease(lease_id=LeaseId("l"), expires_us=2),
    }
    return Cut(**{**fields, **values})


def sealed(text: str) -> str:
    """Return a text as a saved cut whose checksum fits."""
    return f"hwcut1.{hashlib.sha256(text.encode()).hexdigest()[:16]}.{text}"


# ------------------------------------------------------------------------------ values


@pytest.mark.parametrize(
    "bounds",
    [(-1, 20, 30), (21, 20, 30), (10, 31, 30), (10, 20, OFFSET_MAX + 1), (10, 9, 30), (31, 31, 30)],
    ids=str,
)
def test_bounds_that_are_not_in_order_are_refused(bounds: tuple[int, int, int]) -> None:
    """0 <= start <= cold end <= hot end, all of them offsets."""
    with pytest.raises(InvalidCutError, match="are not in order"):
        part(*bounds)


@pytest.mark.parametrize("until", [9, 31, -1])
def test_a_cut_is_narrowed_within_its_range(until: int) -> None:
    """The ends may be at the cut's own bounds, and not beyond them."""
    assert [part(until=one).end for one in (10, 30)] == [10, 30]
    with pytest.raises(InvalidCutError, match="is narrowed to"):
        part(until=until)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
def test_a_narrowed_cut_reads_every_offset_below_its_end_once(
    start: int, cold: int, hot: int, until: int
) -> None:
    """``[start, cold_stop)`` from the table and ``[cold_end, hot_stop)`` from the log."""
    start, cold, hot = sorted((start, cold, hot))
    for end in (None, min(max(until, start), hot)):
        one = part(start, cold, hot, until=end)
        read = [*range(one.start, one.cold_stop), *range(one.cold_end, one.hot_stop)]
        assert read == list(range(start, hot if end is None else end))
        assert one.cold_stop <= one.cold_end <= one.hot_stop
        assert one.records_count == len(read)


@pytest.mark.parametrize("numbers", [(1,), (0, 0), (0, 2), (1, 0)])
def test_a_cut_names_every_partition_in_order(numbers: tuple[int, ...]) -> None:
    """A hole, a repetition or another order is no cut."""
    with pytest.raises(InvalidCutError, match="every partition once"):
        cut(*(part(number=number) for number in numbers))


def test_a_cut_names_its_stream_and_the_version_that_has_its_records() -> None:
    """A stream without a table has no cold records."""
    with pytest.raises(InvalidCutError, match="not a stream uuid"):
        cut(stream_uuid=StreamUuid("orders"))
    with pytest.raises(InvalidCutError, match="must name a table version"):
        cut(part(10, 11, 30), table_version=None)
    assert cut(part(10, 10, 30), table_version=None).records_count == 20


def test_a_cut_s_place_in_history_is_its_hot_end() -> None:
    """This holds for a narrowed cut, too, because its leadership had committed up to there."""
    assert cut(part(until=15), part(number=1)).positions == (CutPosition("a" * 32, Offset(30)),) * 2


# ------------------------------------------------------------------------------ its text


def test_a_saved_cut_is_the_same_cut() -> None:
    """Narrowed or not, with the digest of its version or without."""
    for one in (
        cut(),
        cut(part(until=10)),
        cut(table_digest="ab" * 32),
        cut(table_version=None, partitions=(part(7, 7, 9),)),
    ):
        assert Cut.load(f"  {one.save()}\n") == one
        assert Cut.from_dict(json.loads(json.dumps(one.to_dict()))) == one


def test_every_changed_character_of_a_saved_cut_is_noticed() -> None:
    """It is one line of text that people copy."""
    text = cut().save()
    for at in range(len(text)):
        changed = text[:at] + ("x" if text[at] != "x" else "y") + text[at + 1 :]
        with pytest.raises(InvalidCutError):
            Cut.load(changed)
    with pytest.raises(InvalidCutError):
        Cut.load(text[:-1])


def test_what_only_looks_like_a_cut_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused with a right checksum, too: another format, more or fewer fields, no object, long."""
    body = cut().to_dict()
    for other in (
        {**body, "v": 3}, {**body, "v": 0}, {**body, "more": 1}, {**body, "partitions": 7},
        {name: value for name, value in body.items() if name != "lease"}, [body], None,
    ):  # fmt: skip
        with pytest.raises(InvalidCutError):
            Cut.load(sealed(json.dumps(other)))
    with pytest.raises(InvalidCutError, match="is not JSON"):
        Cut.load(sealed("{"))
    text = cut().save()
    monkeypatch.setattr(cut_module, "_TEXT_BYTES_MAX", len(text) - 1)
    with pytest.raises(InvalidCutError, match="not a saved cut"):
        Cut.load(text)


def test_a_cut_of_the_first_format_is_read() -> None:
    """It has no lineage ids; the stream's broker decides whether it can be used."""
    old = cut().to_dict()
    old["v"] = 1
    del old["partitions"][0]["lineage_id"]
    found = Cut.load(sealed(json.dumps(old)))
    assert found == cut(replace(part(), lineage_id=None))


def test_a_cut_of_a_grown_stream_says_where_its_keys_began() -> None:
    """Only such a cut has the field, so others are read by builds that do not know it."""
    parts = (part(), part(number=1))
    grown = cut(*parts, keys_from=1)
    assert Cut.load(grown.save()) == grown
    assert "keys_from" not in cut(*parts).to_dict()
    for wrong in (0, 2, -1):
        with pytest.raises(InvalidCutError, match="cannot have grown"):
            cut(*parts, keys_from=wrong)
    with pytest.raises(InvalidCutError):
        Cut.from_dict({**grown.to_dict(), "keys_from": "1"})


@pytest.mark.parametrize(
    "wrong",
    [{"hot_end": 9.0}, {"until": True}, {"partition": "0"}, {"start": None}, {"lineage_id": 1}],
)
def test_a_value_of_another_type_is_not_a_cut(wrong: dict[str, object]) -> None:
    """It is refused before a reader meets it, and never taken for a number."""
    values = json.loads(json.dumps(cut(part()).to_dict()))
    with pytest.raises(InvalidCutError, match="must be"):
        Cut.from_dict({**values, "partitions": [{**values["partitions"][0], **wrong}]})
    for other in ({"table_version": "1"}, {"table_uri": 5}, {"lease": [1]}, {"taken_us": None}):
        with pytest.raises(InvalidCutError):
            Cut.from_dict({**values, **other})
