"""Options of the source: what is understood, and how a mistake is named."""

from __future__ import annotations

import pytest

from broker.errors import InvalidRequestError
from broker.model.offsets import OFFSET_MAX
from spark_jobs.source.columns import ROW_COLUMNS
from spark_jobs.source.options import KNOWN, parse, positions_text

UUID = "0f0e0d0c-0b0a-4908-8706-050403020100"


def test_only_the_stream_is_needed() -> None:
    """Everything else has the defaults of Kafka's batch source: earliest to latest."""
    found = parse({"stream": "orders"})

    assert (found.stream, found.server, found.stream_uuid) == ("orders", None, None)
    assert (found.starting, found.ending) == ("earliest", "latest")
    assert found.columns == tuple(ROW_COLUMNS)
    assert not found.explicit()


def test_names_are_compared_without_case() -> None:
    """Spark lower-cases names before the source sees them."""
    found = parse({"STREAM": "s", "streamuuid": UUID, "MinPartitions": "3"})

    assert (found.stream_uuid, found.partitions_min) == (UUID, 3)


def test_offsets_in_numbers_and_words() -> None:
    """Kafka's -2 and -1 are earliest and latest; words are also words."""
    found = parse(
        {
            "stream": "s",
            "startingOffsets": '{"0": 5, "1": -2, "2": "latest"}',
            "endingOffsets": f'{{"0": -1, "1": 0, "2": {OFFSET_MAX}}}',
        }
    )

    assert found.starting == {0: 5, 1: "earliest", 2: "latest"}
    assert found.ending == {0: "latest", 1: 0, 2: OFFSET_MAX}
    assert not found.explicit()


def test_explicit_offsets_need_no_server() -> None:
    """Only when every bound is a number."""
    options = {"stream": "s", "startingOffsets": '{"0": 1}', "endingOffsets": '{"0": 2}'}

    assert parse(options).explicit()
    assert not parse({**options, "endingOffsets": "latest"}).explicit()


def test_positions_text_is_what_the_option_takes() -> None:
    """The two spellings are inverse, whatever the order of the mapping."""
    text = positions_text({3: 9, 0: 1})  # type: ignore[dict-item]

    assert text == '{"0": 1, "3": 9}'
    assert parse({"stream": "s", "startingOffsets": text}).starting == {0: 1, 3: 9}


@pytest.mark.parametrize("name", [*KNOWN[2:], "stream", "server"])
def test_a_misspelt_option_is_refused_with_the_right_name(name: str) -> None:
    """Leaving out a letter never reads other rows in silence."""
    wrong = name[:3] + name[4:]
    with pytest.raises(InvalidRequestError, match=f"did you mean '{name}'"):
        parse({"stream": "s", wrong: "1"})


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("stream", "", "stream name"),
        ("stream", "a/b", "stream name"),
        ("path", "orders", "takes no path"),
        ("streamUuid", "x", "uuid"),
        ("columns", "offset,ofset", "did you mean 'offset'"),
        ("columns", "offset,offset", "twice"),
        ("columns", "", "names ''"),
        ("minPartitions", "-1", "0 to"),
        ("minPartitions", "1.5", "whole number"),
        ("maxRecordsPerPartition", "0", "1 to"),
        ("startingOffsets", "", "must be"),
        ("startingOffsets", "5", "must be"),
        ("startingOffsets", "[]", "must be"),
        ("startingOffsets", "{}", "must be"),
        ("startingOffsets", '{"0": -3}', "partition 0 has -3"),
        ("startingOffsets", '{"0": true}', "partition 0 has True"),
        ("startingOffsets", '{"0": 1.5}', "partition 0 has 1.5"),
        ("startingOffsets", f'{{"0": {OFFSET_MAX + 1}}}', "partition 0 has"),
        ("startingOffsets", '{"-1": 0}', "not a partition"),
        ("startingOffsets", '{"0": 1, "0": 2}', "must be"),
        ("startingOffsets", '{"0": 1, "00": 2}', "named twice"),
        ("startingOffsets", "[" * 100_000, "must be"),
        ("endingOffsets", " " * 2_000_000, "characters long"),
    ],
)
def test_a_wrong_value_is_refused_by_name(option: str, value: str, says: str) -> None:
    """Each refusal names the option or the value."""
    with pytest.raises(InvalidRequestError, match=says):
        parse({"stream": "s", option: value})
