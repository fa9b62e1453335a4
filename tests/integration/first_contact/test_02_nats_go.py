"""Issue 11, item 2: nats.go's own publish options: an ack that is true, or the library's error."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from broker.config import NatsConfig
from simkit.brokers.ingest_rig import IngestRig
from simkit.servers.natsproc import NatsProcess

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SOURCES = Path(__file__).resolve().parents[2] / "lib" / "natsgo"
STREAM, SUBJECT = "pay", "pay.in"
AS_JETSTREAM = (
    "none",
    "WithExpectStream",
    "WithExpectStream other",
    "WithExpectLastSequence",
    "WithExpectLastSequence missed",
    "WithMsgID",
    "WithMsgID again",
    "WithMsgTTL",
)
NOT_CHECKED = {  # option: the header that it sets
    "WithExpectLastSequencePerSubject": "Nats-Expected-Last-Subject-Sequence",
    "WithExpectLastSequenceForSubject": "Nats-Expected-Last-Subject-Sequence",
    "WithExpectLastMsgID": "Nats-Expected-Last-Msg-Id",
}

Told = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def publisher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the program; skip where Go is not installed or its modules are out of reach."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed: a fresh machine needs Python and Java only")
    target = tmp_path_factory.mktemp("natsgo") / "publisher"
    built = subprocess.run(
        [go, "build", "-o", str(target), "."],
        cwd=SOURCES,
        env={**os.environ, "GOFLAGS": "-buildvcs=false -mod=readonly"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if built.returncode and "dial tcp" in built.stderr:
        pytest.skip(f"Go's modules cannot be fetched: {built.stderr[-200:]}")
    assert built.returncode == 0, built.stderr
    return target


@pytest.fixture
def jetstream(tmp_path: Path) -> Iterator[NatsProcess]:
    """A nats-server with JetStream, to compare with."""
    folder = tmp_path / "jetstream"
    folder.mkdir()
    with NatsProcess(folder, settings=f'jetstream {{ store_dir: "{folder}" }}') as process:
        yield process


def _published(publisher: Path, url: str) -> Told:
    done = subprocess.run(
        [str(publisher), url, STREAM, SUBJECT],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return {one.pop("option"): one for one in map(json.loads, done.stdout.splitlines())}


def test_the_options_of_nats_go(
    publisher: Path, server: NatsProcess, jetstream: NatsProcess
) -> None:
    """As JetStream answers them, or refused by the name of the header; none is ignored."""

    async def create() -> None:
        connection = await nats.connect(jetstream.url)
        try:
            await connection.jetstream().add_stream(name=STREAM, subjects=[SUBJECT])
        finally:
            await connection.close()

    asyncio.run(create())
    theirs = _published(publisher, jetstream.url)
    with IngestRig(NatsConfig(url=server.url)) as rig:
        rig.add_stream(STREAM, subject=SUBJECT, puback=True)
        ours = _published(publisher, server.url)
        stored = rig.values(STREAM)
    for option in AS_JETSTREAM:
        mine, its = ours[option], theirs[option]
        for fact in ("stream", "seq", "duplicate", "code", "err_code"):
            assert mine.get(fact) == its.get(fact), f"{option}: {mine}, JetStream: {its}"
    for option, header in NOT_CHECKED.items():
        assert ours[option]["code"] == 400
        assert header in ours[option]["error"]
    acked = [one for one in ours.values() if "error" not in one and not one.get("duplicate")]
    assert len(stored) == len(acked)
    assert ours["none at the end"]["seq"] == len(stored)
