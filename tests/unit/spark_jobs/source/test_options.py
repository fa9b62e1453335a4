"""Options of the source: their values, and the errors about wrong ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.errors import InvalidCutError, InvalidRequestError
from broker.model.cut import Cut, Lease, PartitionCut
from broker.model.epochs import LeaderEpoch
from broker.model.ids import LeaseId, StreamUuid
from broker.model.offsets import OFFSET_MAX, Offset
from spark_jobs.source.columns import KAFKA_COLUMNS, RANGE_COLUMNS, ROW_COLUMNS, STREAMS_COLUMNS
from spark_jobs.source.options import KNOWN, columns_of, parse, parse_batch, parse_stream
from spark_jobs.source.positions import AtMs, is_explicit, of_stream, positions_text

UUID = "0f0e0d0c-0b0a-4908-8706-050403020100"


def test_only_the_stream_is_needed() -> None:
    """Everything else has the defaults of Kafka's source, which differ for a batch and a stream."""
    found = parse_batch({"stream": "orders"})

    assert (found.selection.single, found.server, found.stream_uuid) == ("orders", None, None)
    assert (found.starting, found.ending) == ("earliest", "latest")
    assert (found.columns, found.emit) == (tuple(ROW_COLUMNS), "records")
    assert found.fail_on_data_loss
    assert parse_stream({"subscribe": "orders"}).starting == "latest"


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
    assert not is_explicit(of_stream(found.starting, "s", option="o"))


def test_offsets_by_stream_as_kafka_writes_them() -> None:
    """The nested form is for one stream or several; a stream that is not read is refused."""
    text = '{"a": {"0": 5}, "b": {"0": -1}}'
    found = parse({"subscribe": "a,b", "startingOffsets": text})

    assert found.starting is not None
    assert of_stream(found.starting, "a", option="o") == {0: 5}
    assert of_stream(found.starting, "b", option="o") == {0: "latest"}
    assert of_stream("latest", "b", option="o") == "latest"
    with pytest.raises(InvalidRequestError, match="give positions for each stream"):
        of_stream(found.starting, "c", option="startingOffsets")
    with pytest.raises(InvalidRequestError, match="'b', which this read does not have"):
        parse({"subscribe": "a", "startingOffsets": text})
    with pytest.raises(InvalidRequestError, match="must name each stream"):
        parse({"subscribe": "a,b", "startingOffsets": '{"0": 5}'})


def test_a_time_wins_over_offsets() -> None:
    """As in Spark's Kafka source; an end time without a later record is the end of the log."""
    found = parse(
        {
            "stream": "s",
            "startingOffsets": "latest",
            "startingTimestamp": "1000",
            "endingTimestamp": "2000",
        }
    )

    assert (found.starting, found.ending) == (AtMs(1000, False), AtMs(2000, True))
    lenient = {"startingOffsetsByTimestampStrategy": "latest", "startingTimestamp": "1"}
    assert parse({"stream": "s", **lenient}).starting == AtMs(1, True)


def test_streams_by_list_pattern_and_assignment() -> None:
    """Exactly one way names the streams; the options tell whether several streams are possible."""
    several = parse({"subscribe": "b, a"}).selection
    pattern = parse({"subscribePattern": "a.*"}).selection
    assigned = parse({"assign": '{"a": [0, 2]}'}).selection

    assert (several.names, several.single) == (("a", "b"), None)
    assert pattern.matching(["ab", "ba", "a"]) == ("a", "ab")
    assert assigned.single == "a"
    assert [assigned.takes("a", number) for number in range(3)] == [True, False, True]
    for wrong in ({"stream": "a", "subscribe": "a"}, {}, {"subscribe": "a,a"}):
        with pytest.raises(InvalidRequestError):
            parse(wrong)


def test_columns_of_several_streams_say_which() -> None:
    """Headwater's columns, with the stream's name if there are several; Kafka's on request."""
    assert parse({"subscribe": "a,b"}).columns == (*ROW_COLUMNS, "stream")
    assert parse({"stream": "a", "columns": "kafka"}).columns == KAFKA_COLUMNS
    with_headers = parse({"stream": "a", "columns": "kafka", "includeHeaders": "true"})
    assert with_headers.columns == (*KAFKA_COLUMNS, "headers")
    without = parse({"stream": "a", "includeHeaders": "false"})
    assert without.columns == tuple(name for name in ROW_COLUMNS if name != "headers")


def test_a_cut_says_what_to_read() -> None:
    """Its stream, its incarnation and exactly its offsets; nothing beside it may differ."""
    cut = Cut(
        cluster="c",
        stream="s",
        stream_uuid=StreamUuid(UUID),
        subject="s",
        table_uri="file:///t",
        table_version=3,
        partitions=(
            PartitionCut(
                partition=0,
                start=Offset(2),
                cold_end=Offset(5),
                hot_end=Offset(9),
                leader_epoch=LeaderEpoch(1),
            ),
        ),
        taken_us=1,
        lease=Lease(lease_id=LeaseId("l"), expires_us=2),
    )

    found = parse_batch({"cut": cut.save()})

    assert (found.selection.single, found.starting, found.ending) == ("s", {0: 2}, {0: 9})
    assert found.cut == cut
    earlier = replace(cut, partitions=(replace(cut.partitions[0], until=Offset(4)),))
    assert parse_batch({"cut": earlier.save()}).ending == {0: 4}
    for wrong in ({"stream": "t"}, {"startingOffsets": "earliest"}, {"subscribePattern": "s"}):
        with pytest.raises(InvalidRequestError):
            parse({"cut": cut.save(), **wrong})
    with pytest.raises(InvalidCutError):
        parse({"cut": cut.save()[:-1]})


def test_what_has_no_effect_is_refused() -> None:
    """A limit in a batch, an end in a stream, columns where no record is given."""
    with pytest.raises(InvalidRequestError, match="readStream"):
        parse_batch({"stream": "s", "maxOffsetsPerTrigger": "5"})
    with pytest.raises(InvalidRequestError, match="no end"):
        parse_stream({"stream": "s", "endingOffsets": "latest"})
    with pytest.raises(InvalidRequestError, match="no records"):
        parse({"stream": "s", "emit": "ranges", "columns": "offset"})
    assert parse({"stream": "s", "emit": "ranges"}).columns == tuple(RANGE_COLUMNS)
    with pytest.raises(InvalidRequestError, match="is only for spark"):
        parse_stream({"emit": "streams"})


def test_a_moment_fixes_the_end_of_a_batch_of_one_stream() -> None:
    """A beginning may be given beside it; a table of the catalog, as of now, may be followed."""
    found = parse_batch({"stream": "s", "asOf": "now", "startingOffsets": '{"0": 3}'})
    assert (found.as_of, found.starting, found.cut) == ("now", {0: 3}, None)
    for other in ("cut", "endingOffsets", "endingTimestamp", "lease", "streamUuid"):
        with pytest.raises((InvalidRequestError, InvalidCutError)):
            parse({"stream": "s", "asOf": "now", other: "latest"})
    with pytest.raises(InvalidRequestError, match="one stream"):
        parse({"subscribe": "s,t", "asOf": "now"})
    assert parse_stream({"stream": "s", "asOf": "now"}).as_of == "now"
    with pytest.raises(InvalidRequestError, match="no end"):
        parse_stream({"stream": "s", "asOf": "2026-01-31"})


def test_the_list_of_streams_needs_no_name() -> None:
    """All streams, or those of a selection; a row has columns of its own."""
    found = parse_batch({"emit": "streams"})
    assert (found.selection.pattern, found.columns) == (".*", tuple(STREAMS_COLUMNS))
    assert parse_batch({"emit": "streams", "subscribe": "a,b"}).selection.names == ("a", "b")


def test_a_table_of_the_catalog_is_declared_before_it_has_a_stream() -> None:
    """Spark adds options of its own then; a misspelt option is still refused."""
    names, known = columns_of({"provider": "headwater", "owner": "me", "option.stream": "s"})

    assert names == tuple(ROW_COLUMNS)
    assert set(names) < set(known)
    with pytest.raises(InvalidRequestError, match="did you mean"):
        columns_of({"provider": "headwater", "columnz": "offset"})


def test_positions_text_is_what_the_option_takes() -> None:
    """The two spellings are inverse, whatever the order of the mapping."""
    text = positions_text({3: 9, 0: 1})  # type: ignore[dict-item]

    assert text == '{"0": 1, "3": 9}'
    assert parse({"stream": "s", "startingOffsets": text}).starting == {0: 1, 3: 9}


@pytest.mark.parametrize("name", [*KNOWN])
def test_a_misspelt_option_is_refused_with_the_right_name(name: str) -> None:
    """An option without one of its letters is refused, and reads no other rows."""
    wrong = name[:1] + name[2:]
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
        ("assign", "{}", "assign must be"),
        ("assign", '{"s": []}', "assign must be"),
        ("assign", '{"s": [0, 0]}', "assign must be"),
        ("assign", '{"s": [true]}', "assign must be"),
        ("subscribePattern", "(", "subscribePattern"),
        ("emit", "rows", "records or ranges or streams"),
        ("isolation", "uncommitted", "not offered"),
        ("isolation", "some", "committed"),
        ("coldFiles", "jvm", "set by the catalog"),
        ("failOnDataLoss", "yes", "true or false"),
        ("startingTimestamp", "yesterday", "milliseconds"),
        ("startingTimestamp", "-1", "not a time"),
        ("startingOffsetsByTimestampStrategy", "x", "error or latest"),
        ("maxOffsetsPerTrigger", "0", "1 to"),
        ("startingOffsets", '{"a/b": {"0": 1}}', "not a stream name"),
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
        ("endingOffsets", " " * 2_000_000, "characters; this text has 2000000"),
    ],
)
def test_a_wrong_value_is_refused_by_name(option: str, value: str, says: str) -> None:
    """Each refusal names the option or the value."""
    beside = {} if option in {"assign", "subscribePattern"} else {"stream": "s"}
    with pytest.raises(InvalidRequestError, match=says):
        parse({**beside, option: value})
