"""``headwater stream delete --purge-table``: a real broker, a folder and a bucket."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

import headwater
from broker.codec.checksum import crc32c
from broker.errors import HeadwaterError, StreamRecreatedError, UnknownStreamError
from clusterkit.load import stored
from crashkit.stage import Stage, staged
from headwater.cli.main import app
from headwater.client import Client
from headwater.local import embedded
from tiering.store.location import StoreConfig
from tiering.store.object_store import ErasableStore
from tiering.store.opening import open_store

pytestmark = [pytest.mark.integration, pytest.mark.slow]

VALUES = [b"%04d" % number * 100 for number in range(200)]
# The command, which is killed after a number of objects was deleted.
DYING = """
import os, signal, sys
from tiering.store.{module} import {name} as Store

erase, left = Store.erase, [int(sys.argv.pop(1))]

def dying(self, keys):
    for key in keys:
        if key.endswith("purge_probe"):
            continue
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        erase(self, [key])

Store.erase = dying
from headwater.cli.main import app
app()
"""


@pytest.fixture(scope="module", params=["folder", "bucket"])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A broker whose lake is a folder, or a bucket of moto's."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "folder":
        with staged(folder) as found:
            yield found
        return
    with (
        embedded.start_moto(folder / "moto", bucket="purged") as moto,
        pytest.MonkeyPatch.context() as patch,
    ):
        environment = embedded.moto_environment(moto.address)
        for name, text in environment.items():
            patch.setenv(name, text)
        with staged(folder, lake="s3://purged/lake", environment=environment) as found:
            yield found


@pytest.fixture
def shipped(stage: Stage) -> Iterator[tuple[str, str]]:
    """A stream whose records are in its table, with its name; and the table's address."""
    stage.client.create_stream("s", segment_bytes_max=4096, dedup_window_ms=0)
    for start in range(0, len(VALUES), 20):  # a fast machine puts a flush into one file
        _put(stage.client, VALUES[start : start + 20])
        stage.client.tier_flush("s")
    cut = stage.client.cut("s")
    stage.client.drop_lease(cut.lease.lease_id)
    assert len(_keys(cut.table_uri)) > 20
    yield cut.table_uri, cut.save()
    _run(stage, "delete", "s", "--yes", "--purge-table", "--confirm", "s", exit_code=None)


def _put(client: Client, values: list[bytes]) -> None:
    with client.producer("s") as producer:
        for value in values:
            producer.send([value]).result(60)


def _store(uri: str) -> ErasableStore:
    return open_store(StoreConfig.from_env(uri))


def _keys(uri: str) -> list[str]:
    return [info.key for info in _store(uri).list("")]


def _run(stage: Stage, *arguments: str, exit_code: int | None = 0) -> Any:
    result = CliRunner().invoke(app, ["stream", *arguments, "--server", stage.broker.url])
    assert exit_code is None or result.exit_code == exit_code, result.output
    return result


def test_the_table_goes_with_the_stream_and_a_new_one_begins_clean(
    stage: Stage, shipped: tuple[str, str]
) -> None:
    """A read of the old history is refused, with the new stream of that name and without."""
    uri, saved = shipped
    told = _run(stage, "delete", "s", "--yes", "--purge-table", "--confirm", "s", "--json")
    purged = json.loads(told.stdout)["purged"]
    assert (purged["address"], purged["finished"], purged["waiting_for"]) == (uri, True, [])
    assert purged["objects"] > 20
    assert _keys(uri) == []
    with pytest.raises(UnknownStreamError):
        headwater.read_table("s", server=stage.broker.url, as_of=saved)
    stage.client.create_stream("s", segment_bytes_max=4096, dedup_window_ms=0)
    assert stage.client.stream("s").table_name == "s", "the name is free again"
    _put(stage.client, VALUES[:50])
    stage.client.tier_flush("s")
    assert stored(stage.client, "s") == VALUES[:50]
    rows, certificate = headwater.read_table("s", server=stage.broker.url)
    assert rows.column("value").to_pylist() == VALUES[:50]
    assert not certificate.partitions[0].holes
    with pytest.raises(StreamRecreatedError):
        headwater.read_table("s", server=stage.broker.url, as_of=saved)


def test_the_second_question_cannot_be_skipped_by_accident(
    stage: Stage, shipped: tuple[str, str]
) -> None:
    """Neither by --yes, nor without a terminal, nor by another name, nor under a lease."""
    uri, _ = shipped
    before = _keys(uri)
    purging = ("delete", "s", "--yes", "--purge-table")
    assert "--confirm s" in _run(stage, *purging, exit_code=2).output
    assert "not the name" in _run(stage, *purging, "--confirm", "t", exit_code=2).output
    assert "exists" in _run(stage, "purge-table", uri, "--confirm", "s", exit_code=2).output
    lease = stage.client.take_lease("s", owner="a-reader")
    held = _run(stage, *purging, "--confirm", "s", exit_code=3).output
    assert "a-reader" in held
    assert "--despite-leases" in held
    assert stage.client.stream("s").name == "s"
    assert set(before) <= set(_keys(uri))
    _run(stage, *purging, "--confirm", "s", "--despite-leases")
    assert _keys(uri) == []
    with pytest.raises(HeadwaterError):
        stage.client.renew_lease(lease.lease_id)


def test_a_person_at_a_terminal_is_asked_twice(stage: Stage, shipped: tuple[str, str]) -> None:
    """First as always, then for the name, with what will be gone and where."""
    uri, _ = shipped
    first = _at_terminal(stage, "y\nnot-s\n")
    assert "Delete stream s" in first
    assert "200 records" in first
    assert uri in "".join(first.split()), "whatever the width of the terminal"
    assert stage.client.stream("s").name == "s"
    assert len(_keys(uri)) > 20
    assert "Purged its table" in _at_terminal(stage, "y\ns\n")
    assert _keys(uri) == []


def test_a_reader_that_comes_during_the_question_is_not_interrupted(
    stage: Stage, shipped: tuple[str, str]
) -> None:
    """The person took a while; the leases are asked for again."""
    uri, _ = shipped
    leases: list[Any] = []

    def come() -> None:
        leases.append(stage.client.take_lease("s", owner="a-late-reader"))

    assert "a-late-reader" in "".join(_at_terminal(stage, "y\n", come, "s\n").split())
    assert stage.client.stream("s").name == "s"
    assert len(_keys(uri)) > 20
    stage.client.drop_lease(leases[0].lease_id)


def test_a_table_beneath_the_folder_keeps_the_stream_and_its_table(
    stage: Stage, shipped: tuple[str, str]
) -> None:
    """The command names it, and deletes nothing."""
    uri, _ = shipped
    foreign = "daily/_delta_log/00000000000000000000.json"
    _store(uri).put_if_absent(foreign, b"{}", crc32c=crc32c(b"{}"))
    before = _keys(uri)
    told = _run(stage, "delete", "s", "--yes", "--purge-table", "--confirm", "s", exit_code=None)
    assert told.exit_code
    assert foreign in "".join(told.output.split())
    assert stage.client.stream("s").name == "s"
    assert _keys(uri) == before
    _store(uri).erase([foreign])


def test_a_purge_that_was_killed_goes_on_where_it_is_told_the_address(
    stage: Stage, shipped: tuple[str, str]
) -> None:
    """The stream is deleted, the folder stays taken, and the second run deletes what is left."""
    uri, _ = shipped
    count = len(_keys(uri))
    store = type(_store(uri))
    program = DYING.format(module=store.__module__.rpartition(".")[2], name=store.__name__)
    words = ("stream", "delete", "s", "--yes", "--purge-table", "--confirm", "s")
    died = subprocess.run(
        [sys.executable, "-c", program, "9", *words, "--server", stage.broker.url],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert f"purge-table {uri}" in "".join(died.stderr.replace("\n", " "))
    assert 0 < len(_keys(uri)) < count
    with pytest.raises(UnknownStreamError):
        stage.client.stream("s")
    again = stage.client.create_stream("s")
    assert again.table_name != "s", "the folder is not free yet"
    told = _run(stage, "purge-table", uri, "--confirm", "s", "--json")
    assert json.loads(told.stdout)["table"]["finished"]
    assert _keys(uri) == []
    assert "nothing at" in _run(stage, "purge-table", uri, "--confirm", "s", exit_code=2).output
    assert stage.client.stream("s") == again


def test_a_stream_without_tiering_has_no_table_to_purge(stage: Stage) -> None:
    """It is deleted, and the answer says so."""
    stage.client.create_stream("s", tiering=False)
    assert "had no table" in _run(stage, "delete", "s", "--yes", "--purge-table").output


def _at_terminal(
    stage: Stage, answers: str, at_name: Callable[[], None] | None = None, name: str = ""
) -> str:
    """Run the command at a pseudo-terminal; return what it showed.

    ``at_name`` is called when it asks for the stream's name, which is answered by ``name``.
    """
    ours, theirs = pty.openpty()
    words = ("stream", "delete", "s", "--purge-table", "--server", stage.broker.url)
    process = subprocess.Popen(
        [sys.executable, "-m", "headwater", *words], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, answers.encode())
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
            if at_name is not None and b"Type the stream" in shown:
                at_name()
                at_name = None
                os.write(ours, name.encode())
    except OSError:  # Linux: nobody has the other end any more
        pass
    os.close(ours)
    process.wait(60)
    return shown.decode(errors="replace")
