"""A disk in memory that fails as real ones do: the Files port for simulations. Seeded, one thread.

Written bytes are in the page cache first. A file is durable sector by sector after `datasync`, a
name after `sync_folder`. When the power goes, each unsynced sector, size and name independently
keeps one of its states since the last sync. On request the disk also tears a sector, flips a bit,
zeroes a sector, has no room left, fails a datasync (whose pages are clean from then on, as on
Linux), or stops the whole process at its n-th operation.

The file is not split: a disk, its files and its names lose their power together.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from broker.ports.system import File

SECTOR: Final = 512
ROOMY: Final = 1 << 40
_ZEROS: Final = bytes(SECTOR)


class PowerLostError(BaseException):
    """The machine stopped in the middle of an operation; only the test catches this."""


class _Inode:
    """One file: the bytes in the cache, on the platter, and on the way to it."""

    __slots__ = ("content", "durable", "sizes", "versions", "written")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.versions: dict[int, list[bytes]] = {}  # sector -> its contents since the last sync
        self.sizes: list[int] = []  # lengths since the last sync
        self.written: set[int] = set()  # sectors that take room even on a thin disk

    def note(self, start: int, end: int) -> None:
        """Remember the sectors of ``[start, end)`` as they are now."""
        first, last = start // SECTOR, -(-end // SECTOR)
        now = bytes(self.content[first * SECTOR : last * SECTOR])
        versions = self.versions
        for sector in range(first, last):
            at = (sector - first) * SECTOR
            part = now[at : at + SECTOR]
            if len(part) < SECTOR:
                part = part.ljust(SECTOR, b"\0") if part else _ZEROS
            if sector in versions:
                versions[sector].append(part)
            else:
                versions[sector] = [part]
        self.written.update(range(first, last))

    def resize(self, size: int) -> None:
        """Cut, or extend with zeros."""
        present = len(self.content)
        if size < present:
            del self.content[size:]
            self.note(size, present)
            self.written -= set(range(-(-size // SECTOR), -(-present // SECTOR)))
        else:
            self.content.extend(bytes(size - present))
        self.sizes.append(size)

    def sync(self) -> None:
        """Write the dirty sectors and the size; sectors that a failed sync dropped stay lost."""
        latest = {sector: versions[-1] for sector, versions in self.versions.items()}
        self.settle(latest, len(self.content))

    def used_bytes(self, *, thin: bool) -> int:
        """Return the room that the file takes."""
        return len(self.written) * SECTOR if thin else len(self.content)

    def settle(self, kept: dict[int, bytes], size: int) -> None:
        """Write some sectors and a size to the platter; forget what else was unsynced."""
        durable = self.durable
        if size > len(durable):
            durable.extend(bytes(size - len(durable)))
        end = len(durable)
        for sector, data in kept.items():
            at = sector * SECTOR
            if at < end:
                durable[at : at + SECTOR] = data if at + SECTOR <= end else data[: end - at]
        del durable[size:]
        self.versions.clear()
        self.sizes.clear()


class SimDisk:
    """The machine's disk. :meth:`files` starts a process on it; two at once are refused.

    The class is not split: the actions of a process, a power cut and a test on a disk have one
    order.
    """

    def __init__(self, rng: random.Random, *, capacity_bytes: int = ROOMY) -> None:
        self.rng = rng
        self.capacity_bytes = capacity_bytes
        self.seen: Counter[str] = Counter()  # which faults happened
        self.datasync_failures = 0  # how many of the next ones fail; -1: all
        self.stop_after: int | None = None  # power goes at the n-th operation from now
        self.tear_sectors = False
        self.thin = False  # allocating reserves nothing, as on copy-on-write file systems
        self.copies_on_write = False  # a write over present bytes needs room, too
        self._process = 0
        self.bad_sectors: set[tuple[str, int]] = set()  # path and sector that no read gets
        self._folders: set[str] = {""}
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._pending: dict[str, list[dict[str, _Inode | None]]] = {}  # by folder, in order
        self._renamed: set[str] = set()  # folders whose names are perhaps not durable

    def files(self) -> SimFiles:
        """Start a process: handles of the one before are dead."""
        self._process += 1
        self.stop_after = None
        return SimFiles(self, self._process)

    # ------------------------------------------------------------------ the end of a process

    def lose_power(self) -> None:
        """Keep one state of everything unsynced, chosen at random, and nothing of the cache."""
        keep = self.rng.choice((0.0, 0.2, 0.5, 0.8, 1.0))
        for changes in self._pending.values():
            for change in changes:
                if self.rng.random() < keep:
                    _apply(self._durable_names, change)
                else:
                    self.seen["name lost"] += 1
        self._pending.clear()
        # In the order of their names: a set's would be that of addresses in memory.
        for inode in dict.fromkeys([*self._durable_names.values(), *self._names.values()]):
            self._settle(inode, keep)
            inode.content[:] = inode.durable
        self._names = dict(self._durable_names)
        for target in self._renamed:
            self._folders = {one for one in self._folders if not f"{one}/".startswith(f"{target}/")}
        self._renamed.clear()
        for path in self._names:  # also below a folder whose new name is lost
            self.make_folder(_parent(path))
        self._process += 1
        self.datasync_failures = 0

    def kill(self) -> None:
        """End the process; the machine, and with it the page cache, lives on."""
        self._process += 1

    def _settle(self, inode: _Inode, keep: float) -> None:
        kept: dict[int, bytes] = {}
        for sector, versions in inode.versions.items():
            if self.rng.random() >= keep:
                self.seen["sector lost"] += 1
                continue
            kept[sector] = self.rng.choice(versions) if keep < 1.0 else versions[-1]
            if self.tear_sectors and self.rng.random() < 0.2:
                old = bytes(inode.durable[sector * SECTOR : (sector + 1) * SECTOR])
                at = self.rng.randrange(1, SECTOR)
                kept[sector] = kept[sector][:at] + old.ljust(SECTOR, b"\0")[at:]
                self.seen["sector torn"] += 1
        size = len(inode.durable)
        if inode.sizes and self.rng.random() < keep:
            size = inode.sizes[-1] if keep == 1.0 else self.rng.choice(inode.sizes)
        inode.settle(kept, size)

    # ------------------------------------------------------------------ damage

    def paths(self) -> list[str]:
        """Return all files."""
        return sorted(self._names)

    def peek(self, path: str) -> bytes:
        """Return a file as the process sees it."""
        return bytes(self._names[path].content)

    def overwrite(self, path: str, position: int, data: bytes) -> bytes:
        """Change bytes in the cache, on the platter and on their way; return the former bytes."""
        inode = self._names[path]
        before = bytes(inode.content[position : position + len(data)])
        for bytes_ in (inode.content, inode.durable):
            if position + len(data) <= len(bytes_):
                bytes_[position : position + len(data)] = data
        for sector, versions in inode.versions.items():
            start, stop = sector * SECTOR, (sector + 1) * SECTOR
            low, high = max(start, position), min(stop, position + len(data))
            if low < high:
                part = data[low - position : high - position]
                inode.versions[sector] = [
                    version[: low - start] + part + version[high - start :] for version in versions
                ]
        return before

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """Flip one bit; doing it again undoes it."""
        before = self._names[path].content[position]
        self.overwrite(path, position, bytes([before ^ (1 << bit)]))
        self.seen["bit flipped"] += 1

    def copy_of(self, folder: str) -> dict[str, bytes]:
        """Return the files below a folder as a process sees them."""
        return {path: self.peek(path) for path in self.paths() if path.startswith(f"{folder}/")}

    def put_back(self, copy: dict[str, bytes]) -> None:
        """Replace all files durably by these, and begin a process; other open files are lost."""
        files = self.files()
        for path, content in sorted(copy.items()):
            files.make_folder(_parent(path))
            file = files.open(path, create=True)
            file.write_at(0, [content])
            file.datasync()
            files.sync_folder(_parent(path))

    def cut(self, path: str, size: int) -> bytes:
        """Shorten a file without its owner's knowledge; return the bytes cut off."""
        inode = self._names[path]
        gone = bytes(inode.content[size:])
        del inode.content[size:]
        del inode.durable[size:]
        return gone

    def extend(self, path: str, data: bytes) -> None:
        """Undo :meth:`cut`."""
        inode = self._names[path]
        inode.content.extend(data)
        inode.durable.extend(data)

    def delete(self, path: str) -> _Inode:
        """Remove a file behind the owner's back; :meth:`restore` puts it back."""
        self._durable_names.pop(path, None)
        return self._names.pop(path)

    def wipe(self) -> None:
        """Replace this disk by an empty one; no file may be open."""
        for names in (self._names, self._durable_names, self._pending):
            names.clear()
        self._folders = {""}

    def exchange(self, folder: str, image: dict[str, bytes]) -> None:
        """Put a copy in the place of a folder, behind the owner's back; an empty one empties it."""
        for names in (self._names, self._durable_names):
            for path in [path for path in names if path.startswith(f"{folder}/")]:
                del names[path]
        self._pending.pop(folder, None)
        for path, data in image.items():
            inode = _Inode()
            inode.content, inode.durable = bytearray(data), bytearray(data)
            self.restore(path, inode)

    def refuse_if_bad(self, inode: _Inode, position: int, size: int) -> None:
        """Fail a read that touches a bad sector."""
        for path, sector in self.bad_sectors:
            if self._names.get(path) is inode:
                start = sector * SECTOR
                if position < start + SECTOR and start < position + size:
                    self.seen["read failed"] += 1
                    raise OSError(errno.EIO, "simulated: the sector cannot be read", path)

    def restore(self, path: str, inode: _Inode) -> None:
        """Undo :meth:`delete`."""
        self._names[path] = self._durable_names[path] = inode

    # ------------------------------------------------------------------ for SimFiles

    def step(self, process: int) -> None:
        """Count one operation; refuse those of dead processes."""
        if process != self._process:
            raise OSError(errno.EBADF, "the process that opened this is dead")
        if self.stop_after is not None:
            self.stop_after -= 1
            if self.stop_after < 0:
                self.stop_after = None
                self._process += 1
                self.seen["stopped in the middle"] += 1
                raise PowerLostError

    def free_bytes(self) -> int:
        """Return the room left."""
        if self.capacity_bytes >= ROOMY:  # then the space is not counted
            return self.capacity_bytes
        return max(0, self.capacity_bytes - self.used_bytes())

    def used_bytes(self) -> int:
        """Return the room that all files take."""
        return sum(one.used_bytes(thin=self.thin) for one in self._names.values())

    def fitting(self, inode: _Inode, position: int, size: int) -> int:
        """Return how many of ``size`` bytes at ``position`` there is room for."""
        room = self.free_bytes()
        if self.copies_on_write:  # other files take the room, and give it back
            return min(size, room if room >= ROOMY else self.rng.choice((0, room)))
        if not self.thin:
            return max(0, min(size, len(inode.content) + room - position))
        room -= room % SECTOR
        for sector in range(position // SECTOR, -(-(position + size) // SECTOR)):
            if sector not in inode.written:
                room -= SECTOR
            if room < 0:
                return max(0, sector * SECTOR - position)
        return size

    def sync_inode(self, inode: _Inode) -> None:
        """Sync, or fail as planned: then some pages are written and all are clean."""
        if self.datasync_failures == 0:
            inode.sync()
            return
        self.datasync_failures -= self.datasync_failures > 0
        self.seen["datasync failed"] += 1
        self._settle_clean(inode)
        raise OSError(errno.EIO, "simulated: the device did not confirm")

    def _settle_clean(self, inode: _Inode) -> None:
        view = bytes(inode.content)
        self._settle(inode, self.rng.choice((0.0, 0.5)))
        inode.content[:] = view

    def change(self, folder: str, change: dict[str, _Inode | None]) -> None:
        """Change names at once for the process, later for the platter."""
        _apply(self._names, change)
        self._pending.setdefault(folder, []).append(change)

    def sync_names(self, folder: str) -> None:
        """Make the names of one folder durable."""
        for change in self._pending.pop(folder, []):
            _apply(self._durable_names, change)

    def find(self, path: str) -> _Inode:
        """Return the file; raises FileNotFoundError."""
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode

    def has_file(self, path: str) -> bool:
        """Tell whether the process sees a file of this name."""
        return path in self._names

    def names_in(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        prefix = f"{folder}/" if folder else ""
        paths = [*self._names, *(one for one in self._folders if one)]
        inside = (path[len(prefix) :] for path in paths if path.startswith(prefix))
        return sorted({path.split("/")[0] for path in inside})

    def make_folder(self, folder: str) -> None:
        """Make a folder and its parents; durable at once."""
        parts = folder.split("/")
        self._folders |= {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}

    def has_folder(self, folder: str) -> bool:
        """Tell whether the folder is there."""
        return folder in self._folders

    def rename_folder(self, source: str, target: str) -> None:
        """Rename a folder without open files: all its names at once, durable later."""
        if self.has_folder(target):
            raise OSError(errno.ENOTEMPTY, "folder exists", target)
        moved: dict[str, _Inode | None] = {}
        for path, inode in self._names.items():
            if path.startswith(f"{source}/"):
                moved[path], moved[target + path[len(source) :]] = None, inode
        self._pending.pop(source, None)  # files made in it become durable with the new name
        self.change(_parent(target), moved)
        folders = {one for one in self._folders if one == source or one.startswith(f"{source}/")}
        self._folders -= folders
        self._folders |= {target + one[len(source) :] for one in folders}
        self._renamed.add(target)

    def remove_folder(self, folder: str) -> None:
        """Forget a folder and all in it."""
        for names in (self._names, self._durable_names):
            for path in [path for path in names if path.startswith(f"{folder}/")]:
                del names[path]
        self._pending = {
            path: changes
            for path, changes in self._pending.items()
            if path != folder and not path.startswith(f"{folder}/")
        }
        self._folders = {
            path for path in self._folders if path != folder and not path.startswith(f"{folder}/")
        }


def _apply(names: dict[str, _Inode], change: dict[str, _Inode | None]) -> None:
    for path, inode in change.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode


class SimFile:
    """One open file of a process."""

    def __init__(self, disk: SimDisk, process: int, inode: _Inode) -> None:
        self._disk = disk
        self._process = process
        self._inode = inode

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes; fewer at the end of the file."""
        if self._disk.bad_sectors:
            self._disk.refuse_if_bad(self._inode, position, size)
        return bytes(self._inode.content[position : position + size])

    def write_at(self, position: int, buffers: Sequence[Any], *, read_soon: bool = True) -> int:
        """Write into the cache; what does not fit is not written, and ENOSPC raised."""
        self._disk.step(self._process)
        data = b"".join(buffers)
        content = self._inode.content
        fitting = self._disk.fitting(self._inode, position, len(data))
        full = fitting < len(data)
        if full:
            data = data[:fitting]
            self._disk.seen["write did not fit"] += 1
        if position > len(content):
            self._inode.resize(position)
        before = len(content)
        content[position : position + len(data)] = data
        if len(content) != before:
            self._inode.sizes.append(len(content))
        self._inode.note(position, position + len(data))
        if full:
            raise OSError(errno.ENOSPC, "simulated: no space left")
        return len(data)

    def datasync(self) -> None:
        """Make content and size durable."""
        self._disk.step(self._process)
        self._disk.sync_inode(self._inode)

    def allocate(self, size: int) -> None:
        """Extend with zeros; with too little room, perhaps in part."""
        self._disk.step(self._process)
        present = len(self._inode.content)
        room = self._disk.free_bytes()
        if not self._disk.thin and size - present > room:
            self._inode.resize(present + self._disk.rng.choice((0, room)))
            self._disk.seen["allocation did not fit"] += 1
            raise OSError(errno.ENOSPC, "simulated: no space left")
        if size > present:
            self._inode.resize(size)

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros."""
        self._disk.step(self._process)
        self._inode.resize(size)

    def size(self) -> int:
        """Return the length."""
        return len(self._inode.content)

    def close(self) -> None:
        """Nothing to do."""


class SimFiles:
    """The Files port as one process sees it."""

    def __init__(self, disk: SimDisk, process: int) -> None:
        self._disk = disk
        self._process = process

    def open(self, path: str, *, create: bool = False) -> File:
        """Open, or create a new file, which needs some room."""
        if create:
            self._disk.step(self._process)
            if self.exists(path):
                raise FileExistsError(errno.EEXIST, "file exists", path)
            if not self._disk.has_folder(_parent(path)):
                raise FileNotFoundError(errno.ENOENT, "no such folder", path)
            if self._disk.free_bytes() == 0:
                self._disk.seen["file did not fit"] += 1
                raise OSError(errno.ENOSPC, "simulated: no space left", path)
            self._disk.change(_parent(path), {path: _Inode()})
        return SimFile(self._disk, self._process, self._disk.find(path))

    def exists(self, path: str) -> bool:
        """Tell whether a file or folder is there."""
        return self._disk.has_file(path) or self._disk.has_folder(path)

    def list(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; empty when it is absent."""
        return self._disk.names_in(folder)

    def make_folder(self, folder: str) -> None:
        """Make a folder, durably."""
        self._disk.make_folder(folder)

    def replace(self, source: str, target: str) -> None:
        """Rename; not durable yet."""
        self._disk.step(self._process)
        if self._disk.has_folder(source):
            self._disk.rename_folder(source, target)
            return
        inode = self._disk.find(source)
        self._disk.change(_parent(target), {source: None, target: inode})

    def remove(self, path: str) -> None:
        """Remove; not durable yet."""
        self._disk.step(self._process)
        self._disk.find(path)
        self._disk.change(_parent(path), {path: None})

    def remove_folder(self, folder: str) -> None:
        """Remove a folder and all in it."""
        self._disk.step(self._process)
        self._disk.remove_folder(folder)

    def sync_folder(self, folder: str) -> None:
        """Make the folder's names durable."""
        self._disk.step(self._process)
        self._disk.sync_names(folder)

    def free_bytes(self) -> int:
        """Return the room left."""
        return self._disk.free_bytes()


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
