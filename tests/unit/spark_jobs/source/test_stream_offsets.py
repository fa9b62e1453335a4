"""Offsets of a streaming query: one spelling, exact ranges, nothing foreign accepted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    StreamRecreatedError,
)
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.source.stream_offsets import QueryOffsets, StreamOffsets, parse_offsets

A = StreamUuid("0f0e0d0c-0b0a-4908-8706-050403020100")
B = StreamUuid("1f0e0d0c-0b0a-4908-8706-050403020100")


def offsets(**ends: int) -> dict[str, Any]:
    """Return offsets of stream `s` as a checkpoint has them; p3=7 is partition 3 at 7."""
    return {"v": 1, "id": A, "p": {name[1:]: end for name, end in ends.items()}}


def parsed(body: object) -> QueryOffsets:
    """Parse offsets of a query of one stream, `s`."""
    return parse_offsets(body, single="s", names={})


def test_one_spelling_whatever_the_order() -> None:
    """Spark compares offsets as text, so partitions are written in the order of their numbers."""
    body = {"p": {"10": 1, "2": 5}, "id": A, "v": 1}

    text = json.dumps(parsed(body).to_json("s"))

    assert text == json.dumps({"v": 1, "id": A, "p": {"2": 5, "10": 1}})
    assert json.dumps(parsed(json.loads(text)).to_json("s")) == text


def test_several_streams_are_kept_by_name() -> None:
    """The long form is its own inverse; the short one of an earlier query is understood."""
    both = QueryOffsets(
        {"b": StreamOffsets(B, {0: Offset(2)}), "a": StreamOffsets(A, {0: Offset(1)})}
    )
    body = both.to_json(None)

    assert list(body["s"]) == ["a", "b"]
    assert parse_offsets(body, single=None, names={}) == both
    short = parse_offsets(offsets(p0=5), single=None, names={A: "a"})
    assert short.streams["a"].ends == {0: 5}


def test_a_batch_is_from_one_offset_to_the_other() -> None:
    """New partitions have their beginning in the end's text; others go on at their last end."""
    start = parsed(offsets(p0=5, p1=7))
    end = parsed({**offsets(p0=9, p1=7, p2=8), "from": {"2": 3}})

    assert start.ranges(end) == {
        "s": (A, {0: OffsetRange(Offset(5), Offset(9)), 1: span(7, 7), 2: span(3, 8)})
    }


def span(start: int, end: int) -> OffsetRange:
    """Return a range."""
    return OffsetRange(Offset(start), Offset(end))


def test_the_first_batch_repeats_itself_wherever_latest_is_now() -> None:
    """Its end names its beginning; a newly resolved beginning does not count."""
    end = parsed({**offsets(p0=9), "from": {"0": 5}})

    for drifted in (5, 7, 200):
        again = parsed({**offsets(p0=drifted), "first": True})
        assert again.ranges(end) == {"s": (A, {0: span(5, 9)})}


def test_an_end_that_is_a_beginning_is_an_empty_batch() -> None:
    """Another source of the same query had data in its first batch; this one had none."""
    start = parsed({**offsets(p0=9), "first": True})

    assert start.ranges(parsed({**offsets(p0=5), "first": True})) == {}


def test_nothing_is_read_from_an_end_to_itself() -> None:
    """This holds even if the end names a beginning: that batch was read."""
    end = parsed({**offsets(p0=9), "from": {"0": 5}})

    assert end.ranges(end) == {}


def test_two_incarnations_never_make_a_batch() -> None:
    """The same name with another uuid is another stream."""
    with pytest.raises(StreamRecreatedError) as caught:
        parsed(offsets(p0=5)).ranges(parsed({**offsets(p0=9), "id": B}))
    assert (caught.value.expected, caught.value.found) == (A, B)


def test_a_batch_backwards_is_refused() -> None:
    """It would otherwise look like nothing to do."""
    with pytest.raises(OffsetOutOfRangeError, match="is below its start"):
        parsed(offsets(p0=5)).ranges(parsed(offsets(p0=4)))


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"0": 40},
        {"v": 2, "id": A, "p": {}},
        {"v": 1, "id": "x", "p": {}},
        {"v": 1, "id": A},
        {"v": 1, "id": A, "p": {"0": -1}},
        {"v": 1, "id": A, "p": {"0": True}},
        {"v": 1, "id": A, "p": {"x": 1}},
        {"v": 1, "id": A, "p": {"0": 1}, "first": 1},
        {"v": 1, "s": {"t": {"id": A, "p": {}}}},
        {"v": 1, "s": {"../s": {"id": A, "p": {}}}},
        {"v": 1, "s": []},
    ],
)
def test_a_foreign_checkpoint_is_refused(body: object) -> None:
    """Kafka's offsets, another version, another stream, numbers that are none."""
    with pytest.raises(HeadwaterError):
        parsed(body)


def test_whose_history_the_ends_are_of_is_kept() -> None:
    """Lineage ids are kept beside the ends; the rest of the text does not depend on them."""
    body = {**offsets(p0=5, p10=7), "h": {"0": "a" * 32, "10": "b" * 32}}
    found = parsed(body)
    assert found.streams["s"].lineage_ids == {0: "a" * 32, 10: "b" * 32}
    assert found.to_json("s") == body
    assert parsed(offsets(p0=5)).streams["s"].lineage_ids == {}


@pytest.mark.parametrize("wrong", [[], {"1": "a" * 32}, {"x": "a" * 32}, {"0": "a"}, {"0": 7}])
def test_leaderships_that_are_none_are_refused(wrong: object) -> None:
    """Such a checkpoint was not written by Headwater."""
    with pytest.raises(InvalidRequestError, match="leaderships"):
        parsed({**offsets(p0=5), "h": wrong})
