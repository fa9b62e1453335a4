"""One case from its clone to its end: damage, look, write more, flush, restart, look again.

Runs in a process of its own, which has a single thread when it begins. Whoever runs it ends it
when its time is over, and knows from its progress where it hung.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from broker.model.cut import Cut
from damagekit.catalogue import NOTHING, PROMISES, TWINS, WITH_PROMISES, Case
from damagekit.damages import damage
from damagekit.golden import World, clone
from damagekit.outcomes import Look, Outcome
from damagekit.readers import placed
from damagekit.site import Site, truths_of
from damagekit.spawner import Spawner
from damagekit.twins import tell

# Between the batches of a producer whose broker is to notice, between two of them, that its file of
# promises is another one: one batch in the log and not acknowledged.
_PAUSE_S: Final = 0.5


def run_case(worlds: Path, folder: Path, case: Case, say: Callable[[str], None]) -> list[Look]:
    """Live through one case in ``folder``; return every look. Blocks."""
    if case.damage in TWINS:
        return tell(worlds, folder, case.damage, case.retention, say)
    spawner = Spawner()  # before anything makes a thread
    world = World(worlds / case.retention)
    site = Site(
        spawner,
        folder / "data",
        folder / "lake",
        truths_of(world),
        say,
        cuts_of(world.info(), folder / "lake"),
        unknown=Outcome.NAMED if case.is_no_disk else Outcome.SILENT,
        pause_s=_PAUSE_S if case.state == "running" and case.entry.path == PROMISES else 0.0,
        is_patient=case.damage == NOTHING,
    )
    folder.mkdir(parents=True)
    for root in ("data", "lake"):
        clone(
            world.moment("stopped" if case.state == "stopped" else "killed") / root, folder / root
        )
    if _damage(site, case, worlds, folder):
        _live_on(site, case)
    return site.looks


def _damage(site: Site, case: Case, worlds: Path, folder: Path) -> bool:
    """Do the damage, in the state that the case wants; tell whether the broker runs after it."""
    dice = zlib.crc32(case.name.encode())
    if case.state == "running":
        if not site.start("before"):
            return False
        if dice % 2:
            site.look("before", lambda _: False)
    site.say(f"damage {case.damage} {case.entry.path}")
    damage_of(case, worlds, folder)
    return case.state == "running" or site.start("start") or site.start("second start")


def damage_of(case: Case, worlds: Path, folder: Path) -> None:
    """Do the damage of a case to the copy of its moment in ``folder``."""
    source = worlds / case.source if case.source else None
    damage(_present(folder / case.entry.path), case.damage, source)
    if case.damage.endswith(WITH_PROMISES):
        assert source is not None, "an older copy is put there"
        damage(folder / PROMISES, case.damage, source.parent.parent / PROMISES)


def _present(target: Path) -> Path:
    """Return the target, or what a running broker has put in its place since: it replaces files."""
    if target.exists() or not target.parent.exists():
        return target
    return max(target.parent.glob(f"*{target.suffix}"), default=target)


def _live_on(site: Site, case: Case) -> None:
    """Look, write, ship, restart, look again."""
    site.look("damaged", case.entry.concerns)
    if not case.is_no_disk:  # else there is no stream to write to
        site.publish("written")
        site.flush("written")
        site.look("written", lambda _: False)
    site.end("written", politely=zlib.crc32(case.name.encode()) // 2 % 2 == 0)
    if site.start("restart"):
        site.look("later", case.entry.concerns)
        site.end("later", politely=False)


def cuts_of(info: dict[str, Any], lake: Path) -> dict[str, dict[str, Cut]]:
    """Return the saved cuts of a world, for a copy of its lake."""
    return {
        moment: {
            stream: placed(Cut.load(text), info["lake"], str(lake))
            for stream, text in saved.items()
        }
        for moment, saved in info["cuts"].items()
    }
