"""Two real brokers of one history on one lake: one of them is fenced by name, nothing is mixed.

The test knows what each broker acknowledged. A read is exact by that, or refused. Damage
(``make damage``, ``make crash``) tells more such stories.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker.errors import (
    CommitTimeoutError,
    ForeignHistoryError,
    HeadwaterError,
    HistoryClaimedError,
    OverloadedError,
)
from crashkit.processes import BrokerProcess
from crashkit.reads import verify_fully
from crashkit.stage import one_value
from headwater.client import Client
from headwater.client.fetch import Fetch
from headwater.local import embedded
from headwater.reads.history import History
from tiering.read.lake import Lake
from tiering.read.verify import verify_table

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_FLUSH_MS = _PATIENCE_MS = 60_000
REFUSED = (HistoryClaimedError, ForeignHistoryError)


def values(rows: Fetch) -> list[bytes]:
    """Return what a read gives."""
    return [value for one in rows for value in one.batch["value"].to_pylist()]


@dataclass
class Site:
    """One broker, its data directory, and the values that it acknowledged, in order."""

    home: Home
    name: str
    broker: BrokerProcess
    acked: list[bytes] = field(default_factory=list)

    def start(self) -> Site:
        """Start it; a broker that has lost a leadership answers, and is not ready."""
        self.broker.start()
        assert self.broker.wait_answering(), self.broker.log_tail()
        return self

    def publish(self, count: int, *, retry_ms_max: int = _PATIENCE_MS) -> None:
        """Publish records one by one, each acknowledged; raise the broker's error.

        A broker that answers already may still begin to lead, and claim its leadership in the lake.
        """
        with (
            Client(self.broker.url) as client,
            client.producer("s", retry_ms_max=retry_ms_max) as to,
        ):
            for _ in range(count):
                value = f"{self.name} {len(self.acked)}".encode()
                to.send(one_value(value)).result(timeout=2 * _PATIENCE_MS / 1000)
                self.acked.append(value)

    def flush(self) -> None:
        """Ship everything."""
        with Client(self.broker.url) as client:
            client.tier_flush("s", timeout_ms=_FLUSH_MS)

    def require_exact(self) -> None:
        """A read has the records acknowledged here, and no others; so does ``verify``."""
        with Client(self.broker.url) as client:
            cut = client.cut("s", ttl_ms=600_000, owner="twins")
            read = History(client, cut)
            found = [row for batch in read.batches(["value"]) for row in batch["value"].to_pylist()]
            read.certificate()
            assert found == self.acked, self.name
            verified = verify_fully(client, "s").partitions[0]
            assert verified.end - verified.start == len(self.acked)

    def require_fenced(self) -> None:
        """It reports soon that another broker leads; it takes, ships and serves nothing.

        Its earlier records can still be read from it with the isolation ``uncommitted``.
        """
        self.broker.wait_unready("History")  # claimed, or foreign
        acked = list(self.acked)
        with pytest.raises((*REFUSED, CommitTimeoutError, OverloadedError)):
            self.publish(1, retry_ms_max=1_000)
        assert self.acked == acked
        with pytest.raises(REFUSED):
            self.flush()
        with Client(self.broker.url) as client:
            told = client.tier_status("s")[0].last_error
            with pytest.raises(REFUSED):
                values(client.fetch("s"))
            assert values(client.fetch("s", isolation="uncommitted")) == acked
        assert told is not None
        assert told.startswith(("HistoryClaimedError", "ForeignHistoryError"))

    def require_exact_or_refused(self) -> None:
        """It serves its own records only."""
        with suppress(HeadwaterError):
            self.require_exact()


@dataclass
class Home:
    """A folder with a lake and brokers."""

    folder: Path
    lake: str
    environment: Mapping[str, str]
    sites: list[Site] = field(default_factory=list)

    def site(self, name: str, data: Path | None = None) -> Site:
        """Return a broker, over its own directory or over a copy of another's."""
        place = self.folder / f"{name}-data"
        if data is not None:
            shutil.copytree(data, place)
        broker = BrokerProcess(
            self.folder / name,
            nats_url="",
            lake=self.lake,
            environment=self.environment,
            data_dir=place,
            settings={"node": {"id": "broker-0", "data_dir": str(place)}},
        )
        self.sites.append(Site(self, name, broker))
        return self.sites[-1]

    def twin_of(self, site: Site, name: str, data: Path | None = None) -> Site:
        """Return a broker over a copy of a site's present data, or of an earlier copy.

        No broker may write into it meanwhile: a file that it replaces would be listed and missing.
        """
        twin = self.site(name, data or site.broker.data_dir)
        twin.acked = list(site.acked)
        return twin


@contextmanager
def local(folder: Path) -> Iterator[Home]:
    """Use a lake in a folder."""
    yield Home(folder, str(folder / "lake"), {})


@contextmanager
def moto(folder: Path) -> Iterator[Home]:
    """Use a lake in S3."""
    with (
        embedded.start_moto(folder / "moto", bucket="twins") as running,
        pytest.MonkeyPatch.context() as patch,
    ):
        environment = embedded.moto_environment(running.address)
        for name, text in environment.items():
            patch.setenv(name, text)  # this process reads, so it needs the settings, too
        yield Home(folder, "s3://twins/lake", environment)


@contextmanager
def ended(home: Home) -> Iterator[Home]:
    """End its brokers."""
    try:
        yield home
    finally:
        for site in home.sites:
            with suppress(AssertionError):
                site.broker.kill()


@pytest.fixture(params=[local, moto], ids=["local", "moto"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A home whose brokers are ended."""
    make: Callable[[Path], Iterator[Home]] = request.param
    with make(tmp_path) as home, ended(home):  # type: ignore[attr-defined]
        yield home


def original(home: Home) -> Site:
    """Return a running broker with a cold part and a tail."""
    site = home.site("original").start()
    with Client(site.broker.url) as client:
        client.create_stream("s", subject="s")
    site.publish(20)
    site.flush()
    site.publish(10)
    return site


def test_a_copy_of_a_running_broker_fences_it(home: Home) -> None:
    """The copy leads anew: the original stops at its next check; the copy's data stays exact."""
    first = original(home)
    first.broker.pause()
    twin = home.twin_of(first, "twin")
    first.broker.resume()
    twin.start()
    twin.publish(10)
    first.require_fenced()
    twin.flush()
    first.require_exact_or_refused()
    with pytest.raises(REFUSED):
        first.require_exact()
    twin.publish(5)
    twin.flush()
    twin.require_exact()


def test_the_second_of_two_copies_of_a_stopped_broker_takes_nothing(home: Home) -> None:
    """Both begin the same epoch; the second is refused, also after another start."""
    first = original(home)
    assert first.broker.stop_within(60)
    second = home.twin_of(first, "second")
    first.start()
    first.publish(10)
    second.start()
    second.require_fenced()
    second.broker.kill()
    second.start().require_fenced()
    first.flush()
    first.publish(5)
    first.require_exact()
    second.require_exact_or_refused()


def test_a_copy_by_hard_links_leaves_its_original_alone(tmp_path: Path) -> None:
    """The copy has a lake of its own: neither broker finds the other's records in its files."""
    with local(tmp_path / "one") as home, ended(home):
        first = original(home)
        assert first.broker.stop_within(60)
        other = tmp_path / "other"
        linked = other / "second-data"
        other.mkdir()
        subprocess.run(["cp", "-al", str(first.broker.data_dir), str(linked)], check=True)
        shutil.copytree(home.folder / "lake", other / "lake")
        with local(other) as away, ended(away):
            second = away.site("second").start()
            second.acked = list(first.acked)
            second.publish(10)
            second.flush()
            second.publish(5)
            second.require_exact()
            second.broker.kill()
            first.start().require_exact()
            first.publish(7)
            first.flush()
            first.require_exact()
            first.broker.kill()
            second.start().require_exact()


def test_a_restored_backup_after_the_original_takes_nothing(home: Home) -> None:
    """The table has records that the backup lacks: no offset is given to two records."""
    first = original(home)
    assert first.broker.stop_within(60)
    backup = home.folder / "backup"
    shutil.copytree(first.broker.data_dir, backup)
    before = list(first.acked)
    first.start()
    first.publish(20)
    first.flush()
    first.broker.kill()
    restored = home.twin_of(first, "restored", backup)
    restored.acked = before
    restored.start().require_fenced()
    with pytest.raises(REFUSED):
        restored.require_exact()
    restored.broker.kill()
    first.start().require_exact()


def test_a_commit_that_was_not_noted_stops_an_older_copy(tmp_path: Path) -> None:
    """The original died between its last commit and the ledger's entry of it.

    The older copy learns of it before it takes a write; the check of everything finds all well,
    with the original back and before it has written the entry.
    """
    with local(tmp_path) as home, ended(home):
        first = original(home)
        assert first.broker.stop_within(60)
        backup = home.folder / "backup"
        shutil.copytree(first.broker.data_dir, backup)
        before = list(first.acked)
        first.start()
        first.publish(20)
        ledger = home.folder / "lake" / "default" / "s" / "_headwater" / "ledger"
        kept = ledger.with_name("kept")
        with Client(first.broker.url) as client:
            cut = client.cut("s", ttl_ms=600_000, owner="twins")
        ledger.rename(kept)
        ledger.write_bytes(b"")  # a file where a folder must be: no entry is written
        log = home.folder / "lake" / "default" / "s" / "_delta_log"
        version = cut.table_version
        assert version is not None
        committed = log / f"{version + 1:020}.json"
        deadline_s = time.monotonic() + _PATIENCE_MS / 1000
        while not committed.exists():  # each flush ends without success, for want of an entry
            assert time.monotonic() < deadline_s, "no commit"
            with suppress(HeadwaterError), Client(first.broker.url) as client:
                client.tier_flush("s", timeout_ms=1_000)
        first.broker.kill()
        ledger.unlink()
        kept.rename(ledger)
        assert len(list(ledger.glob("0/*.json"))) == 1
        claims = sorted(ledger.parent.glob("lineage/0/*.json"))
        restored = home.twin_of(first, "restored", backup)
        restored.acked = before
        restored.start().require_fenced()
        restored.broker.kill()
        assert sorted(ledger.parent.glob("lineage/0/*.json")) == claims, "the copy has claimed"
        table = Lake.open(home.lake, cluster=cut.cluster).table_at(cut.table_uri)
        verify_table(table.snapshot(), table.store)
        assert len(list(ledger.glob("0/*.json"))) == 1
        first.start().require_exact()


def test_a_process_that_slept_answers_nothing_after_it(home: Home) -> None:
    """It is suspended while a copy takes over; later it checks its claim before it answers."""
    first = original(home)
    first.broker.pause()
    twin = home.twin_of(first, "twin").start()
    twin.publish(10)
    twin.flush()
    first.broker.resume()
    first.require_fenced()
    with pytest.raises(REFUSED):
        first.require_exact()
    twin.require_exact()
