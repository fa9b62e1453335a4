"""Several writers create one table and commit to one partition of it, on disk and on S3.

Each tries to append the next few offsets after the cold end it sees. The losers get
StaleColdEndError. At the end the table holds every offset once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from broker.model.secret import Secret
from simkit.servers.motoproc import fresh, moto_location
from simkit.tier.lab import TierLab
from tiering.read.certify import prove_partition
from tiering.store.location import StoreConfig

pytestmark = pytest.mark.integration

ROUNDS = 12
WRITERS = 3

_WRITER = """
import json, random, sys
from broker.errors import StaleColdEndError
from broker.model.offsets import OffsetRange
from simkit.tier.lab import TierLab
from tiering.store.location import Credentials, StoreConfig
from tiering.ship.segment_writer import SegmentPlace, write_segment
from tiering.table.table import NewFile

config, seed, rounds = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if config["credentials"]:
    config["credentials"] = Credentials(**config["credentials"])
lab = TierLab(StoreConfig(**config))
lab.source.fill(100, 10)  # every writer has the same log
dice = random.Random(seed)
won, lost = [], 0

def meet():  # every writer has come this far
    print("here", flush=True)
    sys.stdin.readline()

meet()
for number in range(rounds):
    base = lab.table.create() if number == 0 else lab.table.snapshot()
    if number == 1:
        meet()  # one commit on this version at most, whoever may run alone before and after it
    start = base.cold_end(0)
    wanted = OffsetRange(start, start + dice.randrange(1, 9))
    place = SegmentPlace(cluster="lab", partition=lab.source.partition_id, subject="orders",
                         path=f"partition=0/{seed}-{number}.parquet")
    log = lab.source.read(wanted.start, wanted.end, bytes_max=1 << 30)
    built = write_segment(log, wanted, place)
    assert lab.table.store.put_if_absent(place.path, built.body, crc32c=built.entry.crc32c)
    file = NewFile(path=place.path, size_bytes=built.entry.size_bytes, partition=0, modified_us=1,
                   stats_json=built.stats_json)
    try:
        lab.table.commit(base, [file], {0: wanted}, commit_id=place.path, ranges_json="[]")
        won.append([int(wanted.start), int(wanted.end)])
    except StaleColdEndError:
        lost += 1
print(json.dumps({"won": won, "lost": lost}))
"""


@pytest.fixture(params=["local", "s3"])
def location(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoreConfig]:
    """An empty lake of each kind."""
    if request.param == "local":
        yield StoreConfig.from_env(str(tmp_path / "lake"))
        return
    with moto_location(tmp_path_factory.mktemp("moto")) as moto:
        yield fresh(moto)


def let_go(writers: Sequence[subprocess.Popen[str]]) -> None:
    """Let all writers go on once each of them waits."""
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "here\n", writer.communicate()[1]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()


def test_racing_committers_lose_and_double_nothing(location: StoreConfig) -> None:
    """Acknowledged ranges tile the table without gap or overlap; one writer lost on the way."""
    lib = Path(__file__).parents[2] / "lib"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(lib)!r})\n" + _WRITER]
    writers = [
        subprocess.Popen(
            [*command, json.dumps(asdict(location), default=Secret.reveal), str(seed), str(ROUNDS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for seed in range(WRITERS)
    ]  # fmt: skip
    answers = []
    for _ in range(2):
        let_go(writers)
    for writer in writers:
        out, err = writer.communicate(timeout=240)
        assert writer.returncode == 0, err
        answers.append(json.loads(out))
    won = sorted(tuple(one) for answer in answers for one in answer["won"])
    assert won[0][0] == 0
    assert all(left[1] == right[0] for left, right in zip(won, won[1:], strict=False))  # noqa: RUF007
    lab = TierLab(location)
    snapshot = lab.table.snapshot()
    assert snapshot.cold_end(0) == won[-1][1]
    assert snapshot.version == len(won)
    prove_partition(snapshot, 0, lab.table.store)
    assert sum(answer["lost"] for answer in answers) > 0, "the writers never raced"


def test_a_table_that_many_create_at_once_is_created_once(location: StoreConfig) -> None:
    """All get version 0 of one table: no creation replaces another one."""
    for number in range(8):
        labs = [TierLab(replace(location, uri=f"{location.uri}/{number}")) for _ in range(WRITERS)]
        gate = threading.Barrier(WRITERS)

        def create(lab: TierLab, gate: threading.Barrier = gate) -> int:
            gate.wait(60)
            return lab.table.create().version

        with ThreadPoolExecutor(WRITERS) as pool:
            assert list(pool.map(create, labs)) == [0] * WRITERS
        assert labs[0].table.snapshot().version == 0
