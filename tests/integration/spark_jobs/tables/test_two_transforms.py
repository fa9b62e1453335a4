"""Appenders with different transforms are alive at once: each record is in one of the two tables.

Once the fence was one table's. An appender that rejected nothing in a range never looked at the
table of rejected rows again, and one that rejected some never looked at the decoded table before it
committed them: a record was in both tables, or in neither.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import SchemaMismatchError, StaleWatermarkError
from simkit.tier.append_rig import AppendRig, Pausing, append_rig, positions, ranges
from simkit.tier.rejecting import Rejecting
from spark_jobs.tables import Appender, Target

pytestmark = pytest.mark.integration

LIB = Path(__file__).parents[3] / "lib"
ROUNDS = 12


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[AppendRig]:
    """A stream of two partitions with 300 records each."""
    with append_rig(str(tmp_path / "lake"), partitions=2) as found:
        found.fill(300)
        yield found


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """A table that does not exist yet."""
    return Target.at(str(tmp_path / "tables" / "out"))


def rejecting(rig: AppendRig, target: Target, every: int, **options: object) -> Appender:
    """Return an appender that rejects each ``every``-th record; 0: none."""
    rejects = target.beside("__rejected")
    return rig.appender(target, Rejecting(every), rejects=rejects, **options)


def require_once(target: Target, *ends: int) -> None:
    """Each offset below the ends is a row of exactly one of the tables."""
    both = positions(target) + positions(target.beside("__rejected"))
    assert sorted(both) == [(at, n) for at, end in enumerate(ends) for n in range(end)]


@pytest.mark.parametrize("begun", [0, 30])
def test_one_that_rejects_comes_late(rig: AppendRig, target: Target, begun: int) -> None:
    """It planned first. Another one that rejects nothing has appended the range meanwhile."""
    if begun:
        rejecting(rig, target, 3).append(ranges((0, begun)), batch_id="0")
    other = rejecting(rig, target, 0)
    late = rejecting(
        rig, target, 3, run=Pausing(lambda: other.append(ranges((0, 100)), batch_id="b"))
    )

    with pytest.raises(StaleWatermarkError):
        late.append(ranges((0, 100)), batch_id="a")

    require_once(target, 100)
    rejecting(rig, target, 3).append(ranges((0, 200)), batch_id="c")
    require_once(target, 200)


def test_one_that_rejects_nothing_comes_late(
    rig: AppendRig, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one has committed its rejected rows meanwhile, and died."""
    rejecting(rig, target, 3).append(ranges((0, 30)), batch_id="0")

    def dies() -> None:
        dying = rejecting(rig, target, 3)
        monkeypatch.setattr(dying, "_commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            dying.append(ranges((0, 100)), batch_id="b")

    late = rejecting(rig, target, 0, run=Pausing(dies))
    with pytest.raises(StaleWatermarkError):
        late.append(ranges((0, 100)), batch_id="a")

    with pytest.raises(SchemaMismatchError, match="interrupted"):
        rejecting(rig, target, 0).append(ranges((0, 100)), batch_id="c")
    rejecting(rig, target, 3).append(ranges((0, 100)), batch_id="d")
    require_once(target, 100)


_RACES = """
import json, random, sys
from broker.errors import SchemaMismatchError, StaleWatermarkError
from simkit.tier.append_rig import ranges
from simkit.tier.rejecting import Rejecting
from spark_jobs.tables import Appender, Source, Target
from spark_jobs.tables.slice_task import run_here
server, uri, every, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
target = Target.at(uri)
appender = Appender(
    None, target, Source.of("s", server), Rejecting(every),
    rejects=target.beside("__rejected"), run=run_here,
)
dice, told = random.Random(every), {"won": 0, "lost": 0, "begun": 0}
sys.stdin.readline()  # the starting gun
for number in range(rounds):
    ends = appender.watermarks().ends
    wanted = [(ends.get(p, 0), ends.get(p, 0) + dice.randrange(1, 9)) for p in (0, 1)]
    try:
        told["won"] += bool(appender.append(ranges(*wanted), batch_id=str(number)).ranges)
    except StaleWatermarkError:
        told["lost"] += 1
    except SchemaMismatchError as error:
        assert error.facts["begun"]
        told["begun"] += 1
print(json.dumps(told))
"""


def test_racing_transforms_double_and_lose_nothing(rig: AppendRig, target: Target) -> None:
    """Two processes, one of which rejects; whatever was begun in the end is finished by it."""
    code = f"import sys; sys.path.insert(0, {str(LIB)!r})\n{_RACES}"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, rig.server, target.uri, str(every), str(ROUNDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for every in (0, 2)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    told = [json.loads(racer.communicate(timeout=240)[0]) for racer in racers]

    assert sum(each["won"] for each in told) >= 1, told
    finishing = rejecting(rig, target, 2)
    for offsets, _ in finishing.begun().values():
        assert len(offsets) > 0
    finishing.append(ranges((0, 300), (0, 300)), batch_id="end")
    require_once(target, 300, 300)
