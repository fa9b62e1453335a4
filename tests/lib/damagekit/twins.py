"""Two brokers of one history: a copy beside the original, and a sleeper whose copy took its place.

Each is judged by what it acknowledged itself, besides what both share: a read through it is exact
by that, or named. That two of them cannot both be right is for one of them to say.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

from damagekit.golden import World, clone
from damagekit.outcomes import Look, Outcome
from damagekit.site import Site, truths_of
from damagekit.spawner import Spawner


def tell(
    worlds: Path, folder: Path, story: str, retention: str, say: Callable[[str], None]
) -> list[Look]:
    """Tell a story in ``folder``; return every look of both. Blocks; single-threaded at first."""
    spawner, world = Spawner(), World(worlds / retention)
    folder.mkdir(parents=True)
    for root in ("data", "lake"):
        clone(world.moment("stopped") / root, folder / root)
    original = Site(
        spawner, folder / "data", folder / "lake", truths_of(world), say, name="original"
    )
    assert original.start("start"), "an undamaged broker starts"
    original.publish("alone")
    if story == "slept through":
        assert original.broker is not None
        original.broker.pause()
    clone(folder / "data", folder / "twin")
    twin = Site(
        spawner, folder / "twin", folder / "lake", copy.deepcopy(original.truths), say, name="twin"
    )
    if twin.start("start"):
        if story == "slept through":
            _sleep_through(original, twin)
        else:
            _live_side_by_side(original, twin, story.endswith("first"))
        twin.end("end", politely=True)
    elif story == "slept through":
        assert original.broker is not None
        original.broker.resume()
    original.end("end", politely=True)
    for site in (original, twin):
        if site.start("again"):
            site.look("again")
            site.publish("again")
            site.flush("again")
            site.look("at last")
            site.end("at last", politely=False)
    looks = [*original.looks, *twin.looks]
    if not any(look.outcome is Outcome.NAMED for look in looks):
        original.add("at last", "both", "", Outcome.SILENT, "", "neither was told of the other")
        looks = [*original.looks, *twin.looks]
    return looks


def _live_side_by_side(original: Site, twin: Site, original_first: bool) -> None:
    order = (original, twin) if original_first else (twin, original)
    for site in order:
        site.publish("beside")
    for site in order:
        site.flush("beside")
        for one in order:
            one.look("beside")
    for site in reversed(order):
        site.publish("shipped")
        site.flush("shipped")
    for site in order:
        site.look("shipped")


def _sleep_through(original: Site, twin: Site) -> None:
    assert original.broker is not None
    twin.publish("in its place")
    twin.flush("in its place")
    twin.look("in its place")
    original.broker.resume()
    original.look("awake")
    original.publish("awake")
    original.flush("awake")
    for site in (original, twin):
        site.look("awake for long")
