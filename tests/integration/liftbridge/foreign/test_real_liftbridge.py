"""headwater.liftbridge against Liftbridge 1.9.0 itself, built from Go's module cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    StreamExistsError,
    UnknownPartitionError,
    UnknownStreamError,
)
from clusterkit.lift_calls import until
from headwater.liftbridge import Liftbridge, Since, StreamOptions, Until
from headwater.local.embedded import LOOPBACK, free_port, spawn, start_nats
from projectfiles import ROOT

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(
        "HEADWATER_TEST_LIFTBRIDGE" not in os.environ,
        reason="its first build takes minutes: `make test-liftbridge` runs it",
    ),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build Liftbridge; skip where Go is not installed or its modules are out of reach."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed: a fresh machine needs Python and Java only")
    target = tmp_path_factory.mktemp("liftbridge") / "liftbridge"
    built = subprocess.run(  # a fixed program
        [go, "build", "-o", str(target), "github.com/liftbridge-io/liftbridge"],
        cwd=ROOT / "tests/peers/liftbridge",
        env={**os.environ, "GOFLAGS": "-buildvcs=false -mod=mod"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if built.returncode and "dial tcp" in built.stderr:
        pytest.skip(f"Go's modules cannot be fetched: {built.stderr[-200:]}")
    assert built.returncode == 0, built.stderr
    return target


@pytest.fixture(scope="module")
def client(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Liftbridge]:
    """Run one Liftbridge server; give a client of it."""
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    with start_nats(folder / "nats") as nats:
        config = folder / "liftbridge.yaml"
        config.write_text(
            f"listen: {LOOPBACK}:{port}\nhost: {LOOPBACK}\nport: {port}\ndata.dir: {folder}/data\n"
            f"cursors.stream.partitions: 2\nnats.servers: [{nats.address}]\n"
            "clustering:\n  server.id: one\n  raft.bootstrap.seed: true\n"
        )
        process = spawn([str(program), "-c", str(config)], folder / "log")
        try:
            with Liftbridge(f"{LOOPBACK}:{port}") as made:

                def ready() -> bool:
                    with suppress(HeadwaterError):
                        made.create_stream("ready")
                        return True
                    return False

                until(ready, (folder / "log").read_text())
                yield made
        finally:
            process.kill()
            process.wait()


def test_streams_messages_and_errors(client: Liftbridge) -> None:
    """What the client shows of Headwater it shows of Liftbridge, with the same errors."""
    client.create_stream("s", options=StreamOptions(partitions=2))
    with pytest.raises(StreamExistsError):
        client.create_stream("s", "other")
    sent = [
        client.publish_async("s", b"%d" % one, key=b"k", partition=one % 2) for one in range(100)
    ]
    offsets = [ack.offset for ack in (one.result() for one in sent) if ack is not None]
    assert offsets == [one // 2 for one in range(100)]
    found = list(client.subscribe("s", 1, start=Since.earliest(), stop=Until.latest()))
    assert [int(one.value) for one in found] == list(range(1, 100, 2))
    assert {one.key for one in found} == {b"k"}
    part = client.subscribe("s", start=Since.offset(7), stop=Until.offset(9))
    assert [one.offset for one in part] == [7, 8, 9]
    assert client.partition("s").newest_offset == 49
    with pytest.raises(UnknownPartitionError):
        client.publish("nobody", b"x")
    with pytest.raises(UnknownStreamError):
        client.delete_stream("nobody")
    client.set_readonly("s")
    with pytest.raises(InvalidRequestError):
        client.publish("s", b"x")


def test_cursors_and_groups(client: Liftbridge) -> None:
    """Positions are the cursors that Liftbridge's Go client sets, too."""
    client.create_stream("g", options=StreamOptions(partitions=2))
    for number in range(20):
        client.publish("g", b"%d" % number, partition=number % 2)
    assert client.cursor("c", "g", 0) is None
    with client.consumer("group", ["g"], poll_s=0.5, checkpoint_s=None) as member:
        assert sorted(int(next(member).value) for _ in range(20)) == list(range(20))
        member.processed()
        assert member.checkpoint() == {("g", 0): 9, ("g", 1): 9}
    assert client.cursor("__group:group", "g", 1) == 9
    client.publish("g", b"20")
    with client.consumer("group", ["g"], poll_s=0.5) as member:
        assert next(member).value == b"20"
