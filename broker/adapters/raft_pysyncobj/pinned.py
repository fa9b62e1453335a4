"""The library itself: found, compared with the one release that we know, loaded once per member.

We replace private methods of it, so any other source is refused before a line of it runs. Each
member gets a module object of its own, made from the very bytes that were compared. In it, what the
library takes from the outside is ours: the clock, the dice, the journal, no poller, no pickle. The
module that `import pysyncobj` gives to everybody else stays as it was shipped.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.util
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, NoReturn

from broker.errors import InvalidConfigError, LogFailedError

VERSION: Final = "0.3.17"
# Of the names and bytes of all files of that release.
DIGEST: Final = "e6ec162b9b6f23db3f18f5469ee706f7fd1e0ce490a3183f17d15296f4d5edd4"


def source_digest(folder: Path) -> str:
    """Return what names and bytes of a package's Python files amount to."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def check_source(folder: Path) -> None:
    """Raise InvalidConfigError unless the folder holds the one release that we know."""
    found = source_digest(folder)
    if found != DIGEST:
        raise InvalidConfigError(
            f"pysyncobj in {folder} is not release {VERSION} as it was reviewed (SHA-256 {found}); "
            "its private methods are overridden, so no other source may run"
        )


@contextmanager
def sockets_kept() -> Iterator[None]:
    """Undo what the library's first import does to everybody: `socket.inet_ntop` fails after it.

    It is replaced by one that works on Windows only, whatever the platform is.
    """
    kept = {name: getattr(socket, name) for name in ("inet_ntop", "inet_pton")}
    try:
        yield
    finally:
        vars(socket).update(kept)


def load(*, clock: Callable[[], float], dice: Callable[[], float], journal: Any) -> Any:
    """Return a private instance of the library's `syncobj` module, with our surroundings.

    Raises:
        InvalidConfigError: the library is missing, or it is not the release that we know.
    """
    name = "pysyncobj.syncobj"  # relative imports inside are resolved by it; sys.modules is not
    loader = _Compared(_code())
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, loader)
    module.__package__ = "pysyncobj"
    with sockets_kept():
        loader.exec_module(module)
    surroundings = {
        "monotonicTime": clock,
        "random": _Dice(dice),
        "createJournal": lambda _: journal,
        "createPoller": lambda _: _NoPoller(),
        "Serializer": lambda *_: _NoSerializer(module.SERIALIZER_STATE.NOT_SERIALIZING),
        "pickle": _NoPickle(),
    }
    for what, value in surroundings.items():
        if what not in vars(module):
            raise InvalidConfigError(f"pysyncobj has no {what} to be replaced")
        setattr(module, what, value)
    return module


@cache
def _code() -> CodeType:
    spec = importlib.util.find_spec("pysyncobj")  # finds it, runs nothing of it
    if spec is None or spec.origin is None:
        raise InvalidConfigError(f"pysyncobj {VERSION} is not installed")
    folder = Path(spec.origin).parent
    check_source(folder)
    path = folder / "syncobj.py"
    return compile(path.read_bytes(), str(path), "exec")


class _Compared(importlib.abc.InspectLoader):
    def __init__(self, code: CodeType) -> None:
        self._code = code

    def get_source(self, _fullname: str) -> None:
        return None

    def get_code(self, _fullname: str) -> CodeType:
        return self._code


class _Dice:
    """Stands for the module `random`, of which the library uses one function."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.random = draw


class _NoPoller:
    """There are no sockets in here: messages and time come from the caller."""

    def poll(self, timeout: float) -> None:
        """Wait for nothing."""


class _NoSerializer:
    """Snapshots are made, checked, stored and sent by our own code."""

    def __init__(self, idle: int) -> None:
        self._idle = idle
        self.arrived: Any = None

    def checkSerializing(self) -> tuple[int, None]:  # noqa: N802 - the library's name
        """Say that nothing is being written."""
        return self._idle, None

    def setTransmissionData(self, arrived: Any) -> bool:  # noqa: N802
        """Take a snapshot that is whole and checked; tell whether there is one."""
        self.arrived = arrived
        return arrived is not None

    def cancelTransmisstion(self, node: Any) -> None:  # noqa: N802
        """Do nothing: no transfer is under way in here."""


class _NoPickle:
    """Stands for the module `pickle`: whoever gets here took a way that should be closed."""

    def __getattr__(self, name: str) -> NoReturn:
        raise LogFailedError(f"pysyncobj tried to use pickle.{name}")
