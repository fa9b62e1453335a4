"""Issue 11, item 14: `headwater publish` stores exactly its input, or names the bad lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.errors import InvalidRequestError
from broker.model.stream import StreamConfig
from headwater.client import Client

Run = Callable[..., Any]


def succeeds(result: Any) -> None:
    """Check an exit code, and show what the command said if it is another one."""
    assert result.exit_code == 0, result.output


def _values(address: str, stream: str = "s") -> list[bytes]:
    with Client(address) as client, client.fetch(stream, columns=["value"]) as fetch:
        return [value for piece in fetch for value in piece.batch.column("value").to_pylist()]


def _publish(run: Run, stdin: str | bytes, *options: str) -> Any:
    return run("publish", "s", "--via", "flight", *options, stdin=stdin)


@pytest.fixture(autouse=True)
def stream(run: Run) -> None:
    """Make a stream of one partition."""
    made = run("stream", "create", "s")
    assert made.exit_code == 0, made.output


def test_carriage_returns_and_blank_lines_are_records(run: Run, address: str) -> None:
    """Every line is one record, byte for byte; the last line feed makes no record of its own."""
    succeeds(_publish(run, b"a\r\n\n \nb"))
    assert _values(address) == [b"a\r", b"", b" ", b"b"]


def test_options_leave_them_out(run: Run, address: str) -> None:
    """A file from Windows, with empty lines between the records."""
    succeeds(_publish(run, b"a\r\n\r\n\nb\r\n", "--strip-cr", "--skip-blank"))
    assert _values(address) == [b"a", b"b"]


def test_an_empty_file_is_a_record_when_it_is_raw(run: Run, address: str) -> None:
    """`--raw` makes one record of the input, whatever it is."""
    succeeds(_publish(run, b"", "--raw"))
    succeeds(_publish(run, b""))
    assert _values(address) == [b""]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{broken", "line 2: not JSON"),
        ("", "--skip-blank"),
        ("[1]", "line 2: not a JSON object"),
        ('{"other": 1}', "line 2: the record has no field 'id'"),
    ],
)
def test_a_json_error_names_its_line(run: Run, line: str, reason: str) -> None:
    """The number counts every line of the input, from 1."""
    result = _publish(run, f'{{"id": 1}}\n{line}\n', "--key-field", "id")
    assert result.exit_code == 2
    assert reason in result.stderr


def test_bad_lines_go_to_a_file_and_the_others_are_stored(
    run: Run, address: str, tmp_path: Path
) -> None:
    """The file has the lines as they were read, so they can be mended and published."""
    lines = b'{"id": 1}\n{broken\r\n{"id": 2}\nnull\n'
    result = _publish(run, lines, "--key-field", "id", "--skip-bad", "bad", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["sent"], report["acked"], report["skipped"]) == (2, 2, 2)
    assert (tmp_path / "bad").read_bytes() == b"{broken\r\nnull\n"
    assert _values(address) == [b'{"id": 1}', b'{"id": 2}']
    again = _publish(run, '{"id": 3}\n', "--key-field", "id", "--skip-bad", "bad")
    assert again.exit_code == 0
    assert (tmp_path / "bad").read_bytes() == b""


def test_the_input_is_not_the_file_for_bad_lines(run: Run, tmp_path: Path) -> None:
    """The file would be emptied before it is read."""
    (tmp_path / "in").write_text("a\n")
    result = run("publish", "s", "in", "--via", "flight", "--skip-bad", "in")
    assert result.exit_code == 2
    assert (tmp_path / "in").read_text() == "a\n"


def test_a_record_larger_than_the_stream_takes_names_its_line(run: Run, address: str) -> None:
    """Such a line can also go to the file for bad lines."""
    succeeds(run("stream", "create", "small", "--record-bytes", "10"))
    args = ("publish", "small", "--via", "flight")
    result = run(*args, stdin="short\n" + "x" * 11 + "\n")
    assert result.exit_code == 2
    assert "line 2: a record has 11 bytes; 10 is the maximum" in result.stderr
    succeeds(run(*args, "--skip-bad", "bad", stdin="x" * 11 + "\nshort\n"))
    assert _values(address, "small") == [b"short"]


@pytest.mark.parametrize("value", ["null", "true", "[]", '"a.b"', '"*"', '""'])
def test_null_in_a_subject_template_is_an_error(run: Run, value: str) -> None:
    """Before, it was published on `flights.None`. Each part of a subject is one word."""
    succeeds(run("stream", "create", "flights", "--subject", "flights.>"))
    args = ("publish", "flights", "--via", "flight", "--subject", "flights.{origin}")
    result = run(*args, stdin=f'{{"origin": {value}}}\n')
    assert result.exit_code == 2
    assert "line 1:" in result.stderr


@pytest.mark.parametrize("via", ["nats", "flight"])
@pytest.mark.parametrize("subject", ["other", "s.1", "s.>", "s..x", "s x", "{a}"])
def test_a_subject_outside_the_stream_is_refused_by_the_command(
    run: Run, via: str, subject: str
) -> None:
    """It is refused before anything is sent, by NATS or by Flight."""
    result = run("publish", "s", "--via", via, "--subject", subject, stdin='{"a": "other"}\n')
    assert result.exit_code == 2
    assert "records 's'" in result.stderr or "puback" in result.stderr


@pytest.mark.parametrize("subject", ["other", "s.2", "s.*", "s.01"])
def test_a_subject_outside_the_stream_is_refused_by_the_broker(address: str, subject: str) -> None:
    """The Python producer, the Spark sink and every other Flight client are checked so."""
    with Client(address) as client:
        client.create_stream("two", subject="s", partitions=2)
        with client.producer("two", 1) as producer:
            inside = [{"value": b"a", "subject": "s.1"}, {"value": b"b", "subject": None}]
            producer.send(inside).result(10)
            future = producer.send([{"value": b"c"}, {"value": b"d", "subject": subject}])
            with pytest.raises(InvalidRequestError, match="records 's'"):
                future.result(10)
            with pytest.raises(InvalidRequestError):
                producer.flush()
        assert client.describe("two").partitions[1].high_watermark == 2


@pytest.mark.parametrize(
    ("config", "subject", "partition"),
    [
        (StreamConfig(subject="a"), "a", 0),
        (StreamConfig(subject="a"), "a.1", None),
        (StreamConfig(subject="a", partitions=3), "a.2", 2),
        (StreamConfig(subject="a", partitions=3), "a.3", None),
        (StreamConfig(subject="a", partitions=3), "a.0", None),
        (StreamConfig(subject="a", partitions=3), "a." + "9" * 5000, None),
        (StreamConfig(subject="a", partitions=3), "a.²", None),
        (StreamConfig(subject="a.>"), "a.b.c", 0),
        (StreamConfig(subject="a.>"), "a.>", None),
        (StreamConfig(subject="a.>"), "a", None),
        (StreamConfig(subject="a.*"), "a.b", 0),
        (StreamConfig(subject="a.*"), "a.b.c", None),
    ],
)
def test_which_partition_records_a_subject(
    config: StreamConfig, subject: str, partition: int | None
) -> None:
    """Exactly the subjects that the partitions listen to."""
    assert config.partition_on(subject) == partition
