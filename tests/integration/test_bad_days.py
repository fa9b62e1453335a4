"""Faults of a whole broker: S3 fails, the disk is full, bytes rot, clients send garbage.

Real processes throughout. The rule behind every test: what was acknowledged is in the next read,
or the read names the damage; the broker lives, or says why it does not; nothing waits for ever.
"""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, TypedDict

import pyarrow as pa
import pytest
from pyarrow import flight

from broker.codec.flight.actions import ACTIONS
from broker.errors import (
    CommitTimeoutError,
    CorruptDataError,
    DiskFullError,
    LogFailedError,
    RemoteTierUnavailableError,
)
from crashkit.processes import BrokerProcess, http_get
from crashkit.stage import Stage, Witness, one_value, staged
from headwater.client import Client
from headwater.local import embedded
from simkit.servers.natsproc import RawNats
from simkit.servers.s3_proxy import Break, Rule, S3Proxy, s3_proxy

pytestmark = [pytest.mark.integration, pytest.mark.slow]


class _Small(TypedDict):
    segment_bytes_max: int
    segment_age_ms_max: int


SMALL: Final[_Small] = {"segment_bytes_max": 32 * 1024, "segment_age_ms_max": 500}
MIB: Final = 1024 * 1024


# ---------------------------------------------------------------------------- S3 fails


class S3Stage(Stage):
    """A stage whose lake is behind a proxy that can break requests."""

    proxy: S3Proxy
    moto: embedded.EmbeddedServer


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Stage]:
    """Run moto behind a proxy, and a broker that tiers into it, with short patience."""
    folder = tmp_path_factory.mktemp("s3")
    with (
        embedded.start_moto(folder / "moto", bucket="bad") as moto,
        s3_proxy(moto.address) as proxy,
        pytest.MonkeyPatch.context() as patch,
    ):
        environment = embedded.moto_environment(proxy.address)
        for name, text in environment.items():
            patch.setenv(name, text)
        with staged(
            folder,
            lake="s3://bad/lake",
            environment=environment,
            settings={"lake": {"upload_timeout_ms": 8_000}},
        ) as stage:
            found = S3Stage(stage.broker, stage.nats, stage.client)
            found.proxy, found.moto = proxy, moto
            yield found


OUTAGES: Final = {
    "internal errors": [Rule(Break.ERROR_500, one) for one in ("PUT", "GET", "HEAD")],
    "slow down": [Rule(Break.SLOW_DOWN_503, one) for one in ("PUT", "GET", "HEAD")],
    "connections that break": [Rule(Break.DROP, one) for one in ("PUT", "GET", "HEAD")],
    "puts applied without an answer": [Rule(Break.DROP_AFTER, "PUT")],
    "half bodies": [Rule(Break.HALF_BODY, "GET")],
    "no answer at all": [Rule(Break.HANG, one) for one in ("PUT", "GET", "HEAD")],
}


@pytest.mark.parametrize("outage", OUTAGES)
def test_ingest_goes_on_while_s3_fails_and_tiering_resumes(s3: S3Stage, outage: str) -> None:
    """Writers notice nothing of a failing store; once it is well, everything ships by itself."""
    name = outage.replace(" ", "_")
    s3.client.create_stream(name, subject=f"out.{name}", **SMALL)
    witness = Witness(s3.client, name, seed=outage, subject=f"out.{name}")
    with s3.client.producer(name, retry_ms_max=20_000) as producer:
        witness.put(producer, 100)
        s3.client.tier_flush(name, timeout_ms=60_000)
        before = s3.client.tier_status(name)[0].cold.end
        s3.proxy.always(*OUTAGES[outage])
        began_s = time.monotonic()
        try:
            witness.put(producer, 300)
            with suppress(RemoteTierUnavailableError, CommitTimeoutError):  # or the write succeeded
                s3.client.tier_flush(name, timeout_ms=4_000)
            witness.put(producer, 100)
        finally:
            s3.proxy.always()
        assert time.monotonic() < began_s + 120, "writers waited for the store"
    assert s3.broker.ready(), "a failing store does not make the broker unready"
    _wait_shipped(s3.client, name, 500)
    assert before < 500
    certificate = witness.assert_exact()
    assert (certificate.records_count, witness.acked_count) == (500, 500)


def _wait_shipped(client: Client, stream: str, end: int) -> None:
    """Wait until age has sealed the last segment and tiering has shipped it, unasked."""
    deadline_s = time.monotonic() + 150
    while (status := client.tier_status(stream)[0]).cold.end < end:
        assert time.monotonic() < deadline_s, f"tiering did not resume: {status}"
        time.sleep(0.1)


def test_disk_use_is_bounded_by_the_operators_choice(s3: S3Stage) -> None:
    """With unshipped_bytes_max an outage ends in refused writes and not in a full disk."""
    limit = 256 * 1024
    stream = s3.client.create_stream("bound", subject="bound", unshipped_bytes_max=limit, **SMALL)
    folder = s3.broker.data_dir / "streams" / stream.uuid
    witness = Witness(s3.client, "bound", seed="bound", subject="bound")
    s3.proxy.always(Rule(Break.ERROR_500, "PUT"))
    try:
        with (
            pytest.raises(CommitTimeoutError, match="unshipped_bytes_max"),
            s3.client.producer("bound", window_batches=1, retry_ms_max=1_500) as producer,
        ):
            witness.put(producer, 10_000)
        used = sum(path.stat().st_size for path in folder.rglob("*.log"))
        # The active segment's file is reserved as a whole.
        assert limit / 2 <= used <= limit + SMALL["segment_bytes_max"]
        refused = _metric(s3.broker, "refused_writes_total", "bound")
        assert refused > 0
    finally:
        s3.proxy.always()
    s3.client.tier_flush("bound", timeout_ms=120_000)
    with s3.client.producer("bound") as producer:
        witness.put(producer, 50)
    witness.assert_exact()


def _metric(broker: BrokerProcess, name: str, stream: str) -> float:
    _, text = http_get(broker.http_port, "/metrics")
    values = [
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if name in line and f'stream="{stream}"' in line
    ]
    assert values, f"no metric {name} of {stream}"
    return sum(values)


# ---------------------------------------------------------------------------- garbage


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A broker with a local lake and one stream that answers its NATS publishers."""
    with staged(tmp_path_factory.mktemp("plain")) as stage:
        stage.client.create_stream("g", subject="g", puback=True, **SMALL)
        yield stage


def test_garbage_on_the_tcp_ports_changes_nothing(plain: Stage) -> None:
    """Random bytes, half requests and idle connections on Flight's and HTTP's ports."""
    dice = random.Random(5)
    before = plain.broker.resident_bytes()
    openings = [b"", b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01"]
    idle = []
    for port in (plain.broker.flight_port, plain.broker.http_port):
        for number in range(60):
            with suppress(OSError):
                link = socket.create_connection(("127.0.0.1", port), 2)
                idle.append(link)
                link.sendall(openings[number % 4] + dice.randbytes(dice.randint(0, 100_000)))
    try:
        assert http_get(plain.broker.http_port, "/healthz")[0] == 200
        with plain.client.producer("g") as producer:
            producer.send(one_value(b"still here")).result(timeout=60)
    finally:
        for link in idle:
            link.close()
    assert plain.broker.exit_code is None
    assert plain.broker.resident_bytes() < before + 200 * MIB


@pytest.mark.parametrize("path", ["/", "/metrics/../../etc/passwd", "/%00", "/" + "a" * 9000])
def test_strange_http_paths_are_refused(plain: Stage, path: str) -> None:
    """Only the three known paths are answered; the rest is an error status, quickly."""
    status, text = http_get(plain.broker.http_port, path)
    assert status is None or 400 <= status < 500
    assert "root:" not in text


def test_garbage_in_flight_calls_is_a_typed_error(plain: Stage) -> None:
    """Random tickets, actions, descriptors, schemas and marks: an error each, no crash, no hang."""
    dice = random.Random(6)
    options = flight.FlightCallOptions(timeout=60)
    errors = (flight.FlightError, pa.ArrowException, OSError)
    with flight.FlightClient(plain.broker.url) as raw:
        names = [one.type for one in raw.list_actions(options)]
        bare = {name for name, one in ACTIONS.items() if one.fields.keys() == one.defaults.keys()}
        assert set(names) > bare > {"list_streams"}, "these take an empty body"
        for junk in [b"", b"{}", b"[" * 50_000, b"\xff\x00", dice.randbytes(70_000)]:
            with pytest.raises(errors):
                raw.do_get(flight.Ticket(junk), options).read_all()
            for name in [*names, "no such action"]:
                if name not in bare or junk not in (b"", b"{}"):
                    with pytest.raises(errors):
                        list(raw.do_action(flight.Action(name, junk), options))
        wrong = pa.RecordBatch.from_pydict({"value": pa.array([1.5])})
        for parts in ([], ["g"], ["g", "7"], ["g", "x"], ["nope", "0"], ["..", "0"]):
            with pytest.raises(errors):
                _put_junk(raw, parts, wrong, dice.randbytes(64))
    assert plain.broker.exit_code is None
    plain.client.describe("g")


def _put_junk(raw: flight.FlightClient, path: list[str], rows: pa.RecordBatch, mark: bytes) -> None:
    options = flight.FlightCallOptions(timeout=60)
    descriptor = flight.FlightDescriptor.for_path(*path)
    writer, reader = raw.do_put(descriptor, rows.schema, options)
    writer.write_with_metadata(rows, mark)
    writer.done_writing()
    while reader.read() is not None:
        pass
    writer.close()


def test_garbage_in_nats_messages_is_stored_or_refused(plain: Stage) -> None:
    """Broken headers, half envelopes, empty and huge payloads: each is answered, none stops us."""
    dice = random.Random(7)
    magic = b"\xb9\x0e\x43\xb4"  # Liftbridge's envelope
    payloads = [b"", b"\0" * 100_000, magic, magic + dice.randbytes(40), dice.randbytes(5000)]
    payloads += [magic + bytes(range(n)) for n in range(16)]
    link = RawNats(plain.nats.port)
    try:
        link.subscribe("answers.>")
        for number, payload in enumerate(payloads):
            link.publish("g", payload, reply=f"answers.{number}")
        heard = {link.next_message()[0] for _ in payloads}
        assert len(heard) == len(payloads)
        blocks = [b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nno colon\r\n\r\n", b"x", dice.randbytes(300)]
        blocks += [b"NATS/1.0\r\nNats-Msg-Id: " + b"i" * 5000 + b"\r\n\r\n"]
        for number, block in enumerate(blocks):
            head = f"HPUB g answers.h{number} {len(block)} {len(block)}\r\n".encode()
            link.send(head + block + b"\r\n")
        answered = [link.next_message() for _ in blocks]
        assert sum(b'"error"' in body for _, body in answered) == len(blocks) - 1
    finally:
        link.close()
    assert plain.broker.exit_code is None


# ---------------------------------------------------------------------------- disk full


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB; needs the right to mount one."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_refuses_writes_and_heals_without_a_restart(
    tmp_path: Path, tiny_disk: Path
) -> None:
    """ENOSPC is a typed refusal; with room again the same broker stores again; nothing is lost."""
    data = tiny_disk / "data"
    with staged(tmp_path, lake="", data_dir=data) as stage:
        stage.client.create_stream("d", subject="d", segment_bytes_max=MIB, tiering=False)
        witness = Witness(stage.client, "d", seed="disk", subject="d")
        with stage.client.producer("d") as producer:
            witness.put(producer, 200)
        ballast = tiny_disk / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        with (
            pytest.raises((DiskFullError, CommitTimeoutError)) as full,
            stage.client.producer("d", window_batches=1, retry_ms_max=1_000) as producer,
        ):
            witness.put(producer, 100_000)
        assert "No space left" in str(full.value), str(full.value)
        witness.assert_exact()
        ballast.unlink()
        with stage.client.producer("d", retry_ms_max=60_000) as producer:
            witness.put(producer, 200)
        witness.assert_exact()
        stage.broker.kill()
        stage.broker.start()
        stage.broker.wait_ready()
        witness.assert_exact()


# ---------------------------------------------------------------------------- rot

FILE_CLASSES: Final = {
    "sealed segment": "streams/*/0/*.log#0",
    "middle segment": "streams/*/0/*.log#2",
    "active segment": "streams/*/0/*.log#-1",
    "index": "streams/*/0/*.index#1",
    "producer state": "streams/*/0/*.producers#-1",
    "recovery point": "streams/*/0/recovery#0",
    "epoch history": "streams/*/0/epochs#0",
    "metadata journal": "raft/journal#0",
    "metadata slots": "raft/meta#0",
    "member note": "raft/member#0",
    "sessions": "sessions.json#0",
    "controllers": "controllers.json#0",
    "identity": "node.json#0",
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Witness, str]]:
    """A data directory with several segments of acked records, its broker killed."""
    folder = tmp_path_factory.mktemp("rot")
    with staged(folder, lake="") as stage:
        stage.client.create_stream("r", subject="r", tiering=False, **SMALL)
        witness = Witness(stage.client, "r", seed="rot", subject="r")
        with stage.client.producer("r") as producer:
            witness.put(producer, 400)
        stage.broker.kill()
        yield stage.broker.data_dir, witness, stage.nats.address


@pytest.mark.parametrize("seed", range(1))  # the simulated disk has thousands
@pytest.mark.parametrize("file_class", FILE_CLASSES)
def test_a_flipped_byte_is_named_or_harmless(
    tmp_path: Path, stopped: tuple[Path, Witness, str], file_class: str, seed: int
) -> None:
    """After one byte of any file changed: a refusal by name, a typed error, or an exact read."""
    data, witness, nats_url = stopped
    copy = tmp_path / "data"
    shutil.copytree(data, copy)
    pattern, _, place = FILE_CLASSES[file_class].partition("#")
    candidates = sorted(copy.glob(pattern))
    assert candidates, f"no {file_class} in {sorted(copy.iterdir())}"
    victim = candidates[int(place)]
    where = _flip(victim, random.Random(f"{file_class}/{seed}"))
    broker = BrokerProcess(tmp_path / "broker", nats_url=nats_url, lake="", data_dir=copy)
    broker.start()
    told = f"{victim.relative_to(copy)} at {where}"
    try:
        if not broker.wait_answering():
            assert broker.exit_code in (64, 70), told
            assert "CorruptError" in broker.log_tail(), f"{told}:\n{broker.log_tail()}"
            return
        with Client(broker.url) as client, suppress(CorruptDataError, LogFailedError):
            witness.assert_exact(client)  # what is damaged is named; anything else is silent loss
    finally:
        with suppress(AssertionError):
            broker.kill()


def _flip(path: Path, dice: random.Random) -> int:
    """Change one byte that is not part of the zeros reserved behind the data; return where."""
    data = bytearray(path.read_bytes())
    used = len(data.rstrip(b"\0"))
    assert used, f"{path} is empty"
    where = dice.randrange(used)
    data[where] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    return where
