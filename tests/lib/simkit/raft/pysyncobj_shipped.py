"""pysyncobj as it is shipped, fed message by message, to show its behaviour.

Only what tests need to look on is replaced: the transport records instead of sending, and time
stands still until the test moves it. Everything else is the library's own code and files.
"""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pysyncobj.pickle as library_pickle
import pysyncobj.syncobj as library
from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.node import Node
from pysyncobj.transport import Transport

FOLLOWER, LEADER = library._RAFT_STATE.FOLLOWER, library._RAFT_STATE.LEADER
SUCCESS = library.FAIL_REASON.SUCCESS
NODES = {name: Node(name) for name in "abcde"}


class Clock:
    """Seconds; every look moves them a little, as looking does."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.per_look = 0.0

    def __call__(self) -> float:
        """Return the time."""
        self.now += self.per_look
        return self.now


_alive: list[Shipped] = []


@contextmanager
def standing_clock() -> Iterator[Clock]:
    """Give the library a clock of the test's; in the end close what members were made."""
    clock, original = Clock(), library.monotonicTime
    library.monotonicTime = clock
    try:
        yield clock
    finally:
        library.monotonicTime = original
        while _alive:
            _alive.pop().destroy()


class Recorder(Transport):  # type: ignore[misc]  # the library has no types
    """Sends no message; records the messages it is given."""

    def __init__(self) -> None:
        super().__init__(None, None, None)
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        """Remember."""
        self.sent.append((node.id, message))
        return True


class Shipped(SyncObj):  # type: ignore[misc]
    """Member `a` of a group, with a list as its state."""

    def __init__(self, members: str = "abc", *, folder: Path | None = None, **conf: Any) -> None:
        if folder is not None:
            files = {"journalFile": str(folder / "journal"), "fullDumpFile": str(folder / "dump")}
            conf = {"useFork": False, **files, **conf}
        conf = {"autoTick": False, "commandsWaitLeader": False, **conf}
        recorder = Recorder()
        self.__dict__["recorder"] = recorder
        others = [NODES[name] for name in members[1:]]
        super().__init__(NODES[members[0]], others, conf=SyncObjConf(**conf), transport=recorder)
        for node in others:
            self._SyncObj__onNodeConnected(node)
        self.values: list[Any] = []
        _alive.append(self)

    @replicated  # type: ignore[untyped-decorator]
    def add(self, value: Any) -> int:
        """Append a value."""
        self.values.append(value)
        return len(self.values)

    # ------------------------------------------------------------------ feeding it

    def get(self, sender: str, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Receive a message; return the messages sent because of it."""
        before = len(self.recorder.sent)
        self._SyncObj__onMessageReceived(NODES.get(sender, Node(sender)), message)
        return [message for _, message in self.recorder.sent[before:]]

    def tick(self) -> list[dict[str, Any]]:
        """Let it do its due work; return the messages it sends."""
        before = len(self.recorder.sent)
        self.doTick(0)
        return [message for _, message in self.recorder.sent[before:]]

    def lead(self, clock: Clock, *voters: str) -> int:
        """Win an election; return the term."""
        clock.now += 10
        self.tick()
        term = self.term
        for voter in voters:
            self.get(voter, {"type": "response_vote", "term": term})
        assert self.state == LEADER, "the test no longer leads to an election"
        return term

    # ------------------------------------------------------------------ looking at it

    @property
    def state(self) -> int:
        """Follower, candidate or leader."""
        return int(self._SyncObj__raftState)

    @property
    def term(self) -> int:
        """The current term."""
        return int(self._SyncObj__raftCurrentTerm)

    @property
    def log(self) -> list[tuple[bytes, int, int]]:
        """(command, index, term) of every entry."""
        return list(self._SyncObj__raftLog[:])

    @property
    def commit(self) -> int:
        """The commit index."""
        return int(self._SyncObj__raftCommitIndex)

    def close(self) -> None:
        """Close its files."""
        _alive.remove(self)
        self.destroy()


def rows(first: int, last: int, term: int) -> list[tuple[bytes, int, int]]:
    """Return entries of :meth:`Shipped.add`, whose method number is 0."""
    return [(command(index), index, term) for index in range(first, last + 1)]


def command(value: Any) -> bytes:
    """Return the log entry of a member that calls ``add(value)``."""
    return b"\0" + pickled((0, (value,)))


def pickled(value: Any) -> bytes:
    """Return the library's bytes for the wire and the disk."""
    return bytes(library_pickle.dumps(value))


def stranger(name: str) -> Any:
    """Return a node that is in no configuration."""
    return Node(name)


def append(
    term: int, prev: tuple[int, int], new: list[tuple[bytes, int, int]], *, commit: int = 1
) -> dict[str, Any]:
    """Return a leader's message."""
    return {
        "type": "append_entries",
        "term": term,
        "commit_index": commit,
        "prevLogIdx": prev[0],
        "prevLogTerm": prev[1],
        "entries": new,
    }


def killed_copy(source: Path, target: Path) -> Path:
    """Copy a living member's files as a killed process leaves them: the page cache survives it."""
    return Path(shutil.copytree(source, target))


class ShippedOverTcp(SyncObj):  # type: ignore[misc]
    """A member with the library's own sockets, of a group whose others never answer."""

    def __init__(self, port: int, **conf: Any) -> None:
        conf = {"autoTick": False, "commandsWaitLeader": False, **conf}
        others = ["127.0.0.1:1", "127.0.0.1:2"]
        super().__init__(f"127.0.0.1:{port}", others, conf=SyncObjConf(**conf))
        self.values: list[Any] = []

    @replicated  # type: ignore[untyped-decorator]
    def add(self, value: Any) -> int:
        """Append a value."""
        self.values.append(value)
        return len(self.values)

    @property
    def server(self) -> Any:
        """The library's listener."""
        return self._SyncObj__transport._server

    def tick_until(self, done: Callable[[], bool], *, ticks_max: int = 500) -> None:
        """Let it serve its sockets until something has happened."""
        for _ in range(ticks_max):
            if done():
                return
            self.doTick(0.02)
        raise AssertionError("it did not happen")


def frame(message: Any) -> bytes:
    """Return a message as the library puts it on the wire."""
    data = zlib.compress(pickled(message))
    return struct.pack("<i", len(data)) + data
