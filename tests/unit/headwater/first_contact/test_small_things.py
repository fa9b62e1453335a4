"""Issue 11, item 15: small corrections of the command, each with a test."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker.errors import InvalidConfigError
from broker.model.offsets import Offset
from headwater.cli.main import app
from headwater.cli.stream import _say_created
from headwater.client import Client
from headwater.local.cluster_certificates import make_certificates
from simkit.brokers.memory_broker import MemoryBroker

Run = Callable[..., Any]


def succeeds(result: Any) -> None:
    """Check an exit code, and show what the command said if it is another one."""
    assert result.exit_code == 0, result.output


def _fill(run: Run, *options: str, lines: str = "a\nb\nc\nd\n") -> None:
    succeeds(run("stream", "create", "s", *options))
    succeeds(run("publish", "s", "--via", "flight", stdin=lines))


def _moments(run: Run) -> list[str]:
    lines = run("subscribe", "s", "--format", "json").stdout.splitlines()
    return [json.loads(line)["timestamp"] for line in lines]


def test_the_certificate_names_the_moment_asked_for(run: Run) -> None:
    """With `--as-of TIME` the certificate names that time, not the time of the cut."""
    _fill(run)
    moment = _moments(run)[-1]
    told = run("read", "s", "--as-of", moment).stderr
    assert f"as of {moment}" in told


@pytest.mark.parametrize(
    ("options", "shipped", "words"),
    [
        (("--no-tiering",), False, "It had no table."),
        ((), False, "It had no table yet."),
        ((), True, "Its table default/s stays."),
    ],
)
def test_its_table_stays_only_if_there_is_one(
    run: Run, broker: MemoryBroker, options: tuple[str, ...], shipped: bool, words: str
) -> None:
    """A stream without tiering, one without a shipped record, one with."""
    _fill(run, *options)
    if shipped:
        broker.partitions.handle("s", 0).make_cold(Offset(4))
    assert words in run("stream", "delete", "s", "--yes").stdout


def test_a_recreated_stream_says_that_its_table_has_another_name(
    broker: MemoryBroker, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table with the stream's name is the former stream's."""
    _fill(run)
    _say_created(replace(broker.streams.get("s"), table_name="s-3f2a"), None)
    assert "Its table is default/s-3f2a" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--nats-port", "--flight-port", "--http-port"])
def test_a_port_that_cannot_be_is_a_usage_error(option: str, tmp_path: Path) -> None:
    """Exit code 2 and the bounds, before a folder is made."""
    data = tmp_path / "data"
    result = CliRunner().invoke(app, ["up", "--data", str(data), option, "99999"])
    assert result.exit_code == 2
    assert "65535" in result.output
    assert not data.exists()


def test_certificates_of_another_cluster_are_refused(tmp_path: Path) -> None:
    """The authority of one cluster signed brokers of another, which then trusted each other."""
    make_certificates(tmp_path, cluster="one", brokers=["a"])
    make_certificates(tmp_path, cluster="one", brokers=["b"])
    with pytest.raises(InvalidConfigError, match="another cluster"):
        make_certificates(tmp_path, cluster="other", brokers=["c"])
    assert not (tmp_path / "c.crt").exists()


@pytest.mark.parametrize("folder", ["raft", "metadata"])  # of this release, and of release 0.1
@pytest.mark.parametrize("below", ["", "raft", "streams/deep"])
def test_up_inside_the_folder_of_a_daemon_is_refused(
    tmp_path: Path, below: str, folder: str
) -> None:
    """Its own folder would be inside the data folder of another broker."""
    (tmp_path / "node.json").write_text("{}")
    (tmp_path / folder).mkdir()
    data = tmp_path / below
    result = CliRunner().invoke(app, ["up", "--data", str(data)])
    assert result.exit_code == 2
    assert "data folder of a broker" in result.stderr
    assert not (data / "up.lock").exists()


def test_leases_are_listed_and_dropped(run: Run, address: str) -> None:
    """The list has ids, owners and ends; a lease is dropped by its id."""
    _fill(run)
    with Client(address) as client:
        lease = client.take_lease("s", owner="me", ttl_ms=60_000)
    told = json.loads(run("lease", "list", "s", "--json").stdout)
    assert (told["stream"], told["lease_id"], told["owner"]) == ("s", lease.lease_id, "me")
    assert lease.lease_id in run("lease", "list").stdout
    mixed = run("lease", "drop", "nothing", lease.lease_id)
    assert (mixed.exit_code, "1 dropped." in mixed.stdout) == (2, True)
    assert "no stream has the lease 'nothing'" in mixed.stderr
    assert run("lease", "list", "s").stdout == ""
    again = run("lease", "drop", lease.lease_id)
    assert (again.exit_code, again.stdout) == (2, ""), "an unknown lease was reported as dropped"


def test_a_file_that_cannot_be_written_is_named_as_it_was_given(run: Run, tmp_path: Path) -> None:
    """The error does not have the name of the hidden file that is renamed at the end."""
    _fill(run)
    for target in (tmp_path / "nowhere" / "x.parquet", tmp_path):
        told = run("read", "s", "--output", str(target), "--format", "parquet")
        assert told.exit_code == 2, told.output
        assert str(target) in told.stderr.replace("\n", "")
        assert "partial" not in told.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--brokers", "2"), "a cluster has 1, 3 or more brokers, not 2"),
        (("--brokers", "0"), "a cluster has 1, 3 or more brokers, not 0"),
        (("--s3", "gs://x"), "is neither moto nor s3://bucket/prefix"),
        (("--data", __file__), "is a file: give a folder"),
    ],
)
def test_up_refuses_before_it_does_anything(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    """No folder, no port, no server: the refusal is all that is printed."""
    data = tmp_path / "data"
    told = CliRunner().invoke(app, ["up", "--data", str(data), *options])
    assert told.exit_code == 2
    assert words in " ".join(told.stderr.split())
    assert "Port" not in told.stderr
    assert not data.exists()


def test_a_wrong_stream_name_is_told_with_the_rule(run: Run) -> None:
    """What a name may be is in the message."""
    told = run("stream", "describe", "my orders")
    assert told.exit_code == 2
    assert "1 to 128 letters, digits, _ and -" in " ".join(told.stderr.split())


def test_the_list_of_streams_has_record_counts_and_sizes(run: Run) -> None:
    """Both the table for people and the JSON have them."""
    _fill(run)
    told = json.loads(run("stream", "list", "--json").stdout)
    assert told["records_count"] == 4
    assert {"unshipped_bytes", "table_rows_count", "table_bytes"} <= set(told)
    head, line = run("stream", "list").stdout.splitlines()
    named = ["RECORDS", "IN TABLE", "TABLE SIZE", "UNSHIPPED"]
    assert re.split(r"\s{2,}", head)[4:8] == named
    assert re.split(r"\s{2,}", line)[4:8] == ["4", "-", "-", "0 B"], "no table was seen yet"


def test_subscribe_ends_where_it_is_told(run: Run) -> None:
    """`--to` is an offset or a time, and the record at it is not printed."""
    _fill(run)
    _fill_more = run("publish", "s", "--via", "flight", stdin="e\nf\n")
    assert _fill_more.exit_code == 0
    raw = ("subscribe", "s", "--format", "raw")
    assert run(*raw, "--from", "1", "--to", "3").stdout == "b\nc\n"
    assert run(*raw, "--to", "earliest").stdout == ""
    assert run(*raw, "--to", "latest").stdout == "a\nb\nc\nd\ne\nf\n"
    assert run(*raw, "--from", "1", "--to", "3", "--follow").stdout == "b\nc\n"
    stamps = _moments(run)
    before = sum(stamp < stamps[-1] for stamp in stamps)
    assert len(run(*raw, "--to", stamps[-1], "--follow").stdout.splitlines()) == before
    assert run(*raw, "--to", "whenever").exit_code == 2


def test_subscribe_shows_the_records_of_a_key(run: Run) -> None:
    """Every partition is searched, because a NATS publisher may have put the key anywhere."""
    succeeds(run("stream", "create", "s", "--partitions", "3"))
    for partition, key in ((0, "k"), (1, "k"), (2, "other")):
        args = ("publish", "s", "--via", "flight", "-p", str(partition), "-k", key)
        succeeds(run(*args, stdin=f"{partition}\n"))
    succeeds(run("publish", "s", "--via", "flight", stdin="no key\n"))
    shown = run("subscribe", "s", "--format", "raw", "--key", "k").stdout.split()
    assert sorted(shown) == ["0", "1"]
    follow = ("subscribe", "s", "--format", "raw", "--key", "k", "-f", "-n", "2")
    assert sorted(run(*follow).stdout.split()) == ["0", "1"]
