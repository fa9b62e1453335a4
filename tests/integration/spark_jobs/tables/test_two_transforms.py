"""Appenders with different transforms are alive at once: each record is in one of the two tables.

Once the fence was one table's. An appender that rejected nothing in a range never looked at the
table of rejected rows again, and one that rejected some never looked at the decoded table before it
committed them: a record was in both tables, or in neither.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from broker.errors import OverlapError, SchemaMismatchError, StaleWatermarkError
from simkit.tier.append_rig import AppendRig, Pausing, append_rig, opened, positions, ranges
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
from broker.errors import OverlapError, SchemaMismatchError, StaleWatermarkError
from simkit.tier.append_rig import ranges
from simkit.tier.rejecting import Rejecting
from spark_jobs.tables import Appender, Source, Target
from spark_jobs.tables.slice_task import run_here
server, uri, every, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
target = Target.at(uri, app=sys.argv[5])
appender = Appender(
    None, target, Source.of("s", server), Rejecting(every),
    rejects=target.beside("__rejected"), run=run_here,
)
dice, told = random.Random(sys.argv[5]), {"won": 0, "lost": 0, "begun": 0, "overlap": 0}
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
    except OverlapError:
        told["overlap"] += 1
print(json.dumps(told))
"""


def raced(rig: AppendRig, target: Target, *racing: tuple[str, int]) -> list[dict[str, int]]:
    """Let appenders with these names and transforms race in processes; return what they count."""
    code = f"import sys; sys.path.insert(0, {str(LIB)!r})\n{_RACES}"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, rig.server, target.uri, str(every), str(ROUNDS), app],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for app, every in racing
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    return [json.loads(racer.communicate(timeout=240)[0]) for racer in racers]


def test_racing_transforms_double_and_lose_nothing(rig: AppendRig, target: Target) -> None:
    """Two processes, one of which rejects; whatever was begun in the end is finished by it."""
    told = raced(rig, target, ("append", 0), ("append", 2))

    assert sum(each["won"] for each in told) >= 1, told
    finishing = rejecting(rig, target, 2)
    for each in finishing.begun():
        assert len(each.offsets) > 0
    finishing.append(ranges((0, 300), (0, 300)), batch_id="end")
    require_once(target, 300, 300)


def named(target: Target, app: str) -> Target:
    """Return the table under another appender's name."""
    return replace(target, app=app)


def require_no_other(rig: AppendRig, target: Target, every: Mapping[str, int]) -> None:
    """Finish what was begun, each by its own transform; then each claimed offset is there once."""
    for each in rejecting(rig, target, 0).begun():
        finishing = rejecting(rig, named(target, each.app), every[each.began_by])
        finishing.append({each.partition: each.offsets}, batch_id="end")
    assert rejecting(rig, target, 0).begun() == []
    claimed = sorted(
        (partition, at)
        for _, partition, offsets in rejecting(rig, target, 0).watermarks().others
        for at in range(offsets.start, offsets.end)
    )
    assert sorted(positions(target) + positions(target.beside("__rejected"))) == claimed


@pytest.mark.parametrize("every", [(0, 2), (2, 3), (2, 2)])
@pytest.mark.parametrize("turn", range(2))
def test_racing_names_double_and_lose_nothing(
    rig: AppendRig, target: Target, every: tuple[int, int], turn: int
) -> None:
    """An ingest and a backfill that are wrongly to append the same offsets."""
    apps = ("ingest", "backfill")[:: -1 if turn else 1]
    racing = dict(zip(apps, every, strict=True))

    told = raced(rig, target, *racing.items())

    assert sum(each["won"] for each in told) >= 1, told
    require_no_other(rig, target, racing)


def test_names_apart_do_not_hold_each_other_up(rig: AppendRig, target: Target) -> None:
    """An ingest above a backfill decodes otherwise: it begins a term once, and none for later."""
    ingest = rejecting(rig, named(target, "ingest"), 2)
    ingest.append(ranges((100, 110), (100, 110)), batch_id="0")
    backfill = rejecting(
        rig,
        named(target, "backfill"),
        3,
        run=Pausing(lambda: ingest.append(ranges((0, 130), (0, 130)), batch_id="i")),
    )
    backfill.append(ranges((0, 10), (0, 10)), batch_id="b")

    version = opened(target).version()
    for end in (140, 150):
        backfill.append(ranges((0, end - 100), (0, end - 100)), batch_id=str(end))
        ingest.append(ranges((0, end), (0, end)), batch_id=str(end))
    assert opened(target).version() == version + 4
    require_no_other(rig, target, {"ingest": 2, "backfill": 3})


@pytest.mark.parametrize(("dead", "late"), [(3, 0), (3, 2), (3, 3)])
@pytest.mark.parametrize("begun", [0, 30])
def test_another_name_comes_late_after_a_death(
    rig: AppendRig,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
    dead: int,
    late: int,
    begun: int,
) -> None:
    """It planned first; then the other one committed its rejected rows and died."""
    if begun:
        rejecting(rig, named(target, "dead"), dead).append(ranges((0, begun)), batch_id="0")
        rejecting(rig, named(target, "late"), late).append(ranges((0, 0), (0, 9)), batch_id="0")
    wanted = ranges((begun, 100))

    def dies() -> None:
        dying = rejecting(rig, named(target, "dead"), dead)
        monkeypatch.setattr(dying, "_commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            dying.append(wanted, batch_id="b")

    with pytest.raises(StaleWatermarkError):
        rejecting(rig, named(target, "late"), late, run=Pausing(dies)).append(wanted, batch_id="a")

    again = rejecting(rig, named(target, "late"), late)
    if dead == late:  # the rejected rows are the same, so the rest may be anybody's
        assert again.append(wanted, batch_id="c").ranges == wanted
    else:
        with pytest.raises(SchemaMismatchError, match="Run the job of 'dead' again"):
            again.append(wanted, batch_id="c")
    require_no_other(rig, target, {"dead": dead, "late": late})


@pytest.mark.parametrize("every", [(3, 0), (3, 3)])
def test_one_that_rejects_comes_late_after_another_name(
    rig: AppendRig, target: Target, every: tuple[int, int]
) -> None:
    """It planned first. The other name has appended a part of the range, or all of it."""
    quick = rejecting(rig, named(target, "q"), every[1])
    late = rejecting(
        rig, named(target, "s"), every[0],
        run=Pausing(lambda: quick.append(ranges((1, 3), (0, 100)), batch_id="b")),
    )  # fmt: skip

    with pytest.raises((StaleWatermarkError, OverlapError)):
        late.append(ranges((0, 100), (0, 100)), batch_id="a")

    require_no_other(rig, target, {"s": every[0], "q": every[1]})
