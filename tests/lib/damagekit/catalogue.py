"""The catalogue: every file and folder that a world has, times every damage. Found, not named.

A file that somebody adds tomorrow is in it: the folders of a real broker are walked. Cases have
names that stay the same over worlds that are built anew: uuids are replaced by the names of their
streams, and keys that are drawn at random by their order among their likes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from damagekit.golden import OLDER, STATES, STREAMS, World

FILE_DAMAGES: Final = (
    "gone", "emptied", "cut-begin", "cut-middle", "cut-end",
    "flip-begin", "flip-quarter", "flip-middle", "flip-end", "hole-middle", "hole-end",
)  # fmt: skip
FOLDER_DAMAGES: Final = ("gone", "emptied")
ROOTS: Final = ("data", "lake")
# Stories of two brokers of one history; see twins.py.
TWINS: Final = ("twin beside", "twin beside, the original ships first", "slept through")
# What one restore puts back together: the metadata, and the second place that would tell.
METADATA: Final = "data/raft"
PROMISES: Final = "data/promises"
WITH_PROMISES: Final = "-with-promises"
NOTHING: Final = "nothing"  # the case that shows that the harness itself is right

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_RANDOM: Final = re.compile(r"(?<![0-9a-zA-Z])(?=[0-9]*[a-f])[0-9a-f]{8,64}(?![0-9a-zA-Z])")
_NUMBER: Final = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file or folder of a moment of a world."""

    path: str  # below the moment: data/… or lake/…
    alias: str  # the same, in names that other worlds have, too
    kind: str  # what it is, whatever its stream and number
    is_folder: bool
    size: int

    @property
    def stream(self) -> str:
        """The third name of the path: a stream's folder in both trees."""
        parts = self.alias.split("/")
        return parts[2] if len(parts) > 2 else ""

    def concerns(self, stream: str) -> bool:
        """Tell whether it may hold something of a stream: what belongs to another one does not."""
        owner = self.stream
        return owner not in STREAMS or owner == stream

    @property
    def parent(self) -> str:
        """Where it lies."""
        return self.alias.rpartition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One damage to one thing in one state."""

    retention: str
    state: str
    entry: Entry
    damage: str
    source: str = ""  # what takes its place, as a path below the folder of all worlds

    @property
    def name(self) -> str:
        """Return what ``--replay`` takes."""
        return f"{self.retention}:{self.state}:{self.entry.alias}:{self.damage}"

    @property
    def is_for_spark(self) -> bool:
        """Tell whether Spark itself reads what is damaged, and finds it so when it begins."""
        return self.entry.path.startswith("lake/") and self.state == "stopped"

    @property
    def is_no_disk(self) -> bool:
        """Tell whether nothing of the broker's disk is left, so that nothing on it can know."""
        return self.entry.path == ROOTS[0] and self.damage in {"gone", "emptied"}


_TWO: Final = Entry(path="data", alias="data", kind="two brokers", is_folder=True, size=0)


def entries_of(moment: Path, names: Mapping[str, str]) -> list[Entry]:
    """Walk a moment; return all it has, the roots first."""
    found, numbers = [], _Numbers()
    for root in ROOTS:
        for path in [moment / root, *_walked(moment / root)]:
            relative = str(path.relative_to(moment))
            alias = numbers.alias(relative, names)
            kind = _kind(alias, names)
            is_folder = path.is_dir()
            found.append(
                Entry(
                    path=relative,
                    alias=alias,
                    kind=f"{kind}/" if is_folder else kind,
                    is_folder=is_folder,
                    size=0 if is_folder else path.stat().st_size,
                )
            )
    return found


def cases_of(worlds: Path, retention: str) -> list[Case]:
    """Return every case of one retention: states, entries, damages, in this order."""
    world, other = World(worlds / retention), World(worlds / f"{retention}-other")
    names = {str(uuid): str(name) for uuid, name in world.info()["names"].items()}
    found = [
        Case(retention=retention, state="running", entry=_TWO, damage=story) for story in TWINS
    ]
    other_entries = {
        one.alias: one for one in entries_of(other.moment("killed"), other.info()["names"])
    }
    for state in STATES:
        moment = world.moment("stopped" if state == "stopped" else "killed")
        entries = entries_of(moment, names)
        by_kind: dict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            by_kind[entry.kind].append(entry)
        for entry in entries:
            for damage, source in _damages(entry, moment, worlds, by_kind, other_entries):
                found.append(
                    Case(
                        retention=retention,
                        state=state,
                        entry=entry,
                        damage=damage,
                        source=source,
                    )
                )
    return found


def _damages(
    entry: Entry,
    moment: Path,
    worlds: Path,
    by_kind: Mapping[str, list[Entry]],
    other_entries: Mapping[str, Entry],
) -> Iterator[tuple[str, str]]:
    """Yield each damage that changes this entry, with its requirement."""
    here = moment / entry.path
    if entry.path == ROOTS[0]:
        yield NOTHING, ""
    for damage in FOLDER_DAMAGES if entry.is_folder else FILE_DAMAGES:
        if entry.size or damage == "gone" or entry.is_folder:
            yield damage, ""
    for older in OLDER:
        source = moment.parent / older / entry.path
        if source.exists() and not _same(source, here):
            yield older, str(source.relative_to(worlds))
            if entry.path == METADATA:
                yield f"{older}{WITH_PROMISES}", str(source.relative_to(worlds))
    for damage, twin in _others(entry, by_kind[entry.kind]).items():
        source = moment / twin.path
        if not _same(source, here):
            yield damage, str(source.relative_to(worlds))
    twin_entry = other_entries.get(entry.alias)
    if entry.path == ROOTS[0]:
        return  # a broker whose whole disk is another's is that other broker
    if twin_entry is not None and twin_entry.is_folder == entry.is_folder:
        source = worlds / f"{moment.parent.name}-other" / "killed" / twin_entry.path
        if not _same(source, here):
            yield "another-broker", str(source.relative_to(worlds))


def _others(entry: Entry, likes: list[Entry]) -> dict[str, Entry]:
    """Choose a sibling, a like of another partition, and one of another stream."""
    found: dict[str, Entry] = {}
    at = likes.index(entry)
    for other in [*likes[at + 1 :], *likes[:at]]:
        if other.parent == entry.parent:
            found.setdefault("another-sibling", other)
        elif other.stream == entry.stream:
            found.setdefault("another-partition", other)
        else:
            found.setdefault("another-stream", other)
    return found


def _same(one: Path, other: Path) -> bool:
    if one.is_dir() != other.is_dir():
        return False
    if one.is_dir():
        left = {path.relative_to(one): path for path in _walked(one)}
        right = {path.relative_to(other): path for path in _walked(other)}
        return left.keys() == right.keys() and all(
            path.is_dir() or _same(path, right[name]) for name, path in left.items()
        )
    return one.read_bytes() == other.read_bytes()


def _walked(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_dir() or path.is_file()]


class _Numbers:
    """Gives random names numbers, in the order in which they are met among their likes."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        self._next: dict[str, int] = defaultdict(int)

    def alias(self, path: str, names: Mapping[str, str]) -> str:
        for uuid, name in names.items():
            path = path.replace(uuid, name).replace(uuid[:8], f"{name}8")
        path = _UUID.sub(lambda found: self._number("uuid", found[0]), path)
        return _RANDOM.sub(lambda found: self._number("key", found[0]), path)

    def _number(self, what: str, text: str) -> str:
        if text not in self._given:
            self._given[text] = f"{what}{self._next[what]}"
            self._next[what] += 1
        return self._given[text]


def _kind(alias: str, names: Mapping[str, str]) -> str:
    """Return an alias without streams and numbers."""
    parts = alias.split("/")
    if len(parts) > 2:
        suffix = "__latest" if "__latest" in parts[2] else ""
        is_log = parts[0] == "data" and parts[1] == "streams"
        is_table = parts[0] == "lake" and not parts[1].startswith("_")
        parts[2] = f"STREAM{suffix}" if is_log or is_table else parts[2]
    text = "/".join(parts)
    text = re.sub(r"(uuid|key)[0-9]+", "K", text)
    return _NUMBER.sub("N", text)
