"""Tiering against S3 (moto in a process of its own), also behind a proxy that breaks requests."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from broker.codec.checksum import crc32c
from broker.codec.schema import ROW_SCHEMA
from broker.errors import (
    HeadwaterError,
    ObjectCorruptError,
    ObjectMissingError,
    RemoteTierUnavailableError,
    TableRolledBackError,
    UnfencedStoreError,
)
from headwater.local.embedded import moto_environment
from simkit.servers.motoproc import fresh, moto_location
from simkit.servers.s3_proxy import Break, Requests, Rule, S3Proxy, s3_proxy
from simkit.tier.lab import CLUSTER, TierLab, cut_of, read_table
from tiering.proof.proofs import CACHE, prove
from tiering.read.certify import certify_counts, require_sound
from tiering.read.lake import Lake, kept_table
from tiering.read.verify import verify_table
from tiering.ship.shipper import PartitionShipper
from tiering.store.location import StoreConfig
from tiering.store.object_store import require_conditional_put
from tiering.store.opening import open_for_reading, open_store
from tiering.table.delta_log import commit_digest

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreConfig]:
    """One moto for the module."""
    with moto_location(tmp_path_factory.mktemp("moto")) as location:
        yield location


@pytest.fixture
def proxy(moto: StoreConfig) -> Iterator[S3Proxy]:
    """A proxy before moto that breaks nothing yet."""
    assert moto.endpoint is not None
    with s3_proxy(moto.endpoint) as running:
        yield running


def behind(proxy: S3Proxy, moto: StoreConfig) -> StoreConfig:
    """Return a fresh location that is reached through the proxy."""
    return replace(fresh(moto), endpoint=proxy.address)


def impatient_shipper(lab: TierLab, location: StoreConfig) -> PartitionShipper:
    """Return a shipper of the lab with limits that a request without an answer reaches soon."""
    limits = replace(location, read_timeout_s=1.0, upload_deadline_s=6.0)
    return lab.shipper(table=Lake.open(limits, cluster=CLUSTER).table(lab.stream))


def ship(lab: TierLab, *, cycles_max: int = 60) -> int:
    """Run cycles until everything is cold; return how many failed."""
    failures = 0
    shipper = lab.shipper()
    for _ in range(cycles_max):
        try:
            if not shipper.run_cycle():
                return failures
        except RemoteTierUnavailableError:
            failures += 1
    raise AssertionError("shipping does not succeed")


def require_exact(lab: TierLab) -> None:
    """The table gives the log's rows, and every digest is right."""
    lab.table = lab.lake.table(lab.stream)
    snapshot = lab.table.snapshot()
    assert snapshot.cold_end(0) == lab.source.log_end == lab.source.cold_end
    assert read_table(lab.table, 0).equals(lab.source.truth())
    verify_table(snapshot, lab.table.store)


def test_a_stream_is_shipped_and_read_back(moto: StoreConfig) -> None:
    """Parquet objects by boto3, commits by delta-rs, reads by ranges: the log's rows."""
    lab = TierLab(fresh(moto))
    lab.lake.require_fence()
    lab.source.fill(3, 500)
    assert ship(lab) == 0
    require_exact(lab)
    plain = DeltaTable(lab.table.uri, storage_options=lab.lake.config.storage_options())
    rows = pa.table(plain.to_pyarrow_table()).sort_by("offset")
    assert rows.select(ROW_SCHEMA.names).cast(ROW_SCHEMA).equals(lab.source.truth())
    reader = Lake.open(lab.lake.config).table_at(lab.table.uri)
    assert reader.snapshot().files == lab.table.snapshot().files


def test_large_objects_are_read_in_pieces(
    moto: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the whole-object limit only footers and wanted row groups are fetched."""
    monkeypatch.setattr("tiering.store.arrow_file.WHOLE_BYTES_MAX", 0)
    lab = TierLab(fresh(moto))
    lab.source.fill(2, 400)
    ship(lab)
    require_exact(lab)


def test_a_deleted_object_is_named(moto: StoreConfig) -> None:
    """An object that vanished from the bucket: by key, from the cheap and from the full check."""
    lab = TierLab(fresh(moto))
    lab.source.fill(2, 50)
    ship(lab)
    victim = lab.table.snapshot().files[1].path
    store = open_store(lab.table.store.config)
    store._client.delete_object(  # type: ignore[attr-defined]
        Bucket=store.config.bucket, Key=f"{store.config.prefix}/{victim}"
    )
    with pytest.raises(ObjectMissingError) as caught:
        read_table(lab.table, 0)
    assert caught.value.key == victim


def test_a_removed_last_commit_is_noticed(moto: StoreConfig) -> None:
    """A commit deleted from the bucket is a rolled back table, also for one that is open."""
    lab = TierLab(fresh(moto))
    lab.source.fill(2, 50)
    ship(lab)
    newest = lab.table.snapshot().version
    store = open_store(lab.table.store.config)
    store._client.delete_object(  # type: ignore[attr-defined]
        Bucket=store.config.bucket, Key=f"{store.config.prefix}/_delta_log/{newest:020}.json"
    )
    with pytest.raises(TableRolledBackError):
        lab.table.find(cold_end_min={0: 100})


@pytest.mark.parametrize(
    "how", [Break.ERROR_500, Break.SLOW_DOWN_503, Break.DROP, Break.DROP_AFTER]
)
def test_failing_requests_are_retried(proxy: S3Proxy, moto: StoreConfig, how: Break) -> None:
    """Requests of every kind fail, of boto3 and of delta-rs: exact, in the end."""
    lab = TierLab(behind(proxy, moto))
    lab.source.fill(2, 30)
    proxy.once(*[Rule(how, method) for method in ("PUT", "GET") for _ in range(3)])
    ship(lab)
    proxy.once(*[Rule(how, "HEAD") for _ in range(2)])
    lab.table.store.head(lab.table.snapshot().files[0].path)
    assert proxy.unmet() == 0, "no request met a fault"
    require_exact(lab)


@pytest.mark.parametrize("part", ["_delta_log", "partition"])
def test_a_body_that_breaks_off_is_never_believed(
    proxy: S3Proxy, moto: StoreConfig, part: str
) -> None:
    """Half of an answer's body arrives: retried, never taken for the whole."""
    lab = TierLab(behind(proxy, moto))
    lab.source.fill(2, 30)
    ship(lab)
    proxy.once(*[Rule(Break.HALF_BODY, "GET", part)] * 2)
    for _ in range(3):
        try:
            require_exact(lab)
        except RemoteTierUnavailableError:  # delta-rs gives up at once, boto3 asks again
            continue
        break
    assert proxy.unmet() == 0
    require_exact(lab)


@pytest.mark.parametrize(
    "how", [Break.ERROR_500, Break.SLOW_DOWN_503, Break.DROP, Break.DROP_AFTER, Break.HALF_BODY]
)
def test_a_reader_asks_again(proxy: S3Proxy, moto: StoreConfig, how: Break) -> None:
    """Requests of a process that only reads fail: repeated, except a listing that breaks off."""
    body = bytes(range(256)) * 40
    store = open_for_reading(behind(proxy, moto))
    assert store.put_if_absent("r/x", body, crc32c=crc32c(body))
    asks: list[Callable[[], object]] = [
        lambda: store.get("r/x"),
        lambda: store.get("r/x", 0, len(body)),
    ]
    for ask in asks:
        proxy.once(Rule(how, "GET"))
        assert ask() == body
        assert proxy.unmet() == 0
    proxy.once(Rule(how, "GET"))
    if how is Break.HALF_BODY:
        with pytest.raises(RemoteTierUnavailableError):
            list(store.list("r/"))
    assert [one.key for one in store.list("r/")] == ["r/x"]


def test_a_hanging_upload_ends_by_its_deadline(proxy: S3Proxy, moto: StoreConfig) -> None:
    """The server never answers (AV#820): a typed error in bounded time, then all is well."""
    location = behind(proxy, moto)
    lab = TierLab(location)
    lab.source.fill(1, 30)
    shipper = impatient_shipper(lab, location)
    proxy.always(Rule(Break.HANG, "PUT", "partition"))
    begun = time.monotonic()
    with pytest.raises(RemoteTierUnavailableError):
        shipper.run_cycle()
    assert time.monotonic() - begun < 60  # of 6; without a deadline it would never end
    proxy.always()
    ship(lab)
    require_exact(lab)


def test_a_hanging_commit_ends_by_its_deadline(proxy: S3Proxy, moto: StoreConfig) -> None:
    """delta-rs waits for an answer that never comes: bounded, and the outcome is found."""
    location = behind(proxy, moto)
    lab = TierLab(location)
    lab.source.fill(1, 30)
    ship(lab)
    lab.source.fill(1, 30)
    proxy.once(Rule(Break.DROP_AFTER, "PUT", "_delta_log"))
    ship(lab)
    require_exact(lab)
    lab.source.fill(1, 30)
    shipper = impatient_shipper(lab, location)
    proxy.always(Rule(Break.HANG, "PUT", "_delta_log"))
    begun = time.monotonic()
    with pytest.raises(RemoteTierUnavailableError):
        shipper.run_cycle()
    assert time.monotonic() - begun < 60  # of 6; without a deadline it would never end
    proxy.always()
    ship(lab)
    require_exact(lab)


def test_a_store_that_ignores_conditions_is_refused(proxy: S3Proxy, moto: StoreConfig) -> None:
    """The probe finds it; a store that is declared to have a single writer is accepted."""
    proxy.always(Rule(Break.UNCONDITIONAL, "PUT"))
    location = behind(proxy, moto)
    with pytest.raises(UnfencedStoreError, match="If-None-Match"):
        require_conditional_put(open_store(location))
    require_conditional_put(open_store(replace(location, single_writer=True)))


def test_an_applied_put_whose_answer_was_lost_counts_as_created(
    proxy: S3Proxy, moto: StoreConfig
) -> None:
    """Boto3 repeats the PUT and gets 412 for our own object: the same bytes, so created."""
    store = open_store(behind(proxy, moto))
    proxy.once(Rule(Break.DROP_AFTER, "PUT"))
    assert store.put_if_absent("x", b"body", crc32c=crc32c(b"body"))
    assert proxy.count("PUT") == 2


def test_a_dead_store_is_unavailable_and_not_an_absent_table(moto: StoreConfig) -> None:
    """An outage must never look like "no table yet": tables are created on that answer."""
    lab = TierLab(replace(fresh(moto), endpoint="http://127.0.0.1:9", connect_timeout_s=0.5))
    asks: list[Callable[[], object]] = [lab.table.find, lab.table.create, lab.table.snapshot]
    for ask in asks:
        with pytest.raises(RemoteTierUnavailableError):
            ask()
    with pytest.raises(HeadwaterError):
        lab.shipper().run_cycle()


_JOB = """
import sys
from broker.model.secret import Secret
from tiering.read.lake import Lake
from tiering.store.location import Credentials, StoreConfig
from tiering.read.verify import verify_table
uri, endpoint, key, secret = sys.argv[1:]
config = StoreConfig(uri=uri, endpoint=endpoint, region="us-east-1", path_style=True,
                     credentials=Credentials(access_key_id=key, secret_access_key=Secret(secret)))
table = Lake.open(config).table_at(uri)
proof = verify_table(table.snapshot(), table.store)[0]
print(proof.cold_count)
"""


def test_a_process_that_read_from_s3_ends_cleanly(moto: StoreConfig) -> None:
    """delta-rs once aborted at interpreter exit after reading from S3: the status is checked."""
    lab = TierLab(fresh(moto))
    lab.source.fill(1, 50)
    ship(lab)
    credentials = moto.credentials
    assert credentials is not None
    assert moto.endpoint is not None
    arguments = [lab.table.uri, moto.endpoint, credentials.access_key_id,
                 credentials.secret_access_key.reveal()]  # fmt: skip
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", _JOB, *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert (done.returncode, done.stdout.strip()) == (0, "50"), done.stderr


def test_an_object_is_told_by_its_bytes_where_its_name_has_changed(moto: StoreConfig) -> None:
    """A copy by parts is the same object; another one of equal size is named, also by this process.

    The range is asked for as a broker does that reads for its clients.
    """
    lab = TierLab(fresh(moto))
    lab.source.fill(2, 40)
    ship(lab)
    snapshot, store = lab.table.snapshot(), lab.table.store
    key, whole = snapshot.files[0].path, snapshot.ranges[0]
    require_sound(snapshot, store, 0, whole)
    body = store.get(key)
    place = {"Bucket": moto.bucket, "Key": f"{store.config.prefix}/{key}"}
    client = open_store(moto)._client  # type: ignore[attr-defined]
    named = store.head(key).etag
    upload = client.create_multipart_upload(**place)["UploadId"]
    part = client.upload_part(**place, UploadId=upload, PartNumber=1, Body=body)["ETag"]
    client.complete_multipart_upload(
        **place, UploadId=upload, MultipartUpload={"Parts": [{"ETag": part, "PartNumber": 1}]}
    )
    assert store.head(key).etag != named
    require_sound(snapshot, store, 0, whole)
    certify_counts(snapshot, cut_of(snapshot, lab.stream), store)
    client.put_object(**place, Body=body[:-1] + b"!")
    for _ in range(2):
        with pytest.raises(ObjectCorruptError, match="crc32c"):
            require_sound(snapshot, store, 0, whole)


def served_for(proxy: S3Proxy, work: Callable[[], object], *, hold_s: float = 0.0) -> Requests:
    """Return the requests of some work; each answer is held, so that others are sent meanwhile."""
    proxy.watch(hold_s)
    work()
    return proxy.served()


def test_what_is_known_is_not_asked_for_again(
    proxy: S3Proxy, moto: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process asks for a log at once, later for listings and new commits; all libraries count."""
    for name, text in moto_environment(proxy.address).items():
        monkeypatch.setenv(name, text)
    lab = TierLab(behind(proxy, moto))
    shipper, broker = lab.shipper(), lab.lake.table(lab.stream)
    lab.source.fill(6, 20)
    lab.ship_all(shipper)
    CACHE.forget()

    def read() -> None:
        snapshot = broker.snapshot()  # as a broker takes a cut
        prove(snapshot, broker.store)
        commit_digest(broker.store, snapshot.version)
        table = kept_table(broker.uri)  # as a reader plans
        found = table.snapshot(snapshot.version)
        certify_counts(found, cut_of(found, lab.stream), table.store)

    # Of the broker the log, seven commits, the stored proofs; of the reader log, commits, files.
    # A busy machine needs a while to send all that are sent at once.
    first = served_for(proxy, read, hold_s=1.0)
    assert len(first) == 9 + 9, str(first)
    assert first.in_a_row <= 8, str(first)
    assert len(again := served_for(proxy, read)) == 3, str(again)

    # The object, its read-back, the commit, a listing that shows it, a last look, the ledger.
    lab.source.fill(1, 20)
    append = served_for(proxy, shipper.run_cycle)
    assert len(append) == 6, str(append)
    assert len(grown := served_for(proxy, read)) == 3 + 2, str(grown)
