"""Finds the library, compares it with the one reviewed release, and loads it once per member.

Private methods of the library are replaced, so any other source is refused before a line of it
runs. Each member gets a module object of its own, made from the bytes that were compared. In this
module the clock, the random numbers and the journal are ours, and there is no poller and no pickle.
The module that `import pysyncobj` returns elsewhere stays as it was shipped.
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
# The digest of the names and bytes of all files of that release.
DIGEST: Final = "e6ec162b9b6f23db3f18f5469ee706f7fd1e0ce490a3183f17d15296f4d5edd4"


def source_digest(folder: Path) -> str:
    """Return the SHA-256 of the names and bytes of a package's Python files."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def check_source(folder: Path) -> None:
    """Raise InvalidConfigError unless the folder has the one reviewed release."""
    found = source_digest(folder)
    if found != DIGEST:
        raise InvalidConfigError(
            f"pysyncobj in {folder} is not the reviewed release {VERSION} (SHA-256 {found}). Its "
            "private methods are replaced, so no other source may run: install pysyncobj "
            f"{VERSION}, or set cluster.raft = own"
        )


@contextmanager
def sockets_kept() -> Iterator[None]:
    """Restore `socket.inet_ntop`, which the library's first import replaces for the whole process.

    The replacement works on Windows only, but is used on every platform.
    """
    kept = {name: getattr(socket, name) for name in ("inet_ntop", "inet_pton")}
    try:
        yield
    finally:
        vars(socket).update(kept)


def load(*, clock: Callable[[], float], dice: Callable[[], float], journal: Any) -> Any:
    """Return a private instance of the library's `syncobj` module, with our replacements.

    Raises:
        InvalidConfigError: the library is missing, or it is not the release that we know.
    """
    name = "pysyncobj.syncobj"  # for relative imports inside; sys.modules is not changed
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
            raise InvalidConfigError(f"pysyncobj has no {what}, which has to be replaced")
        setattr(module, what, value)
    return module


@cache
def _code() -> CodeType:
    spec = importlib.util.find_spec("pysyncobj")  # finds it and runs nothing of it
    if spec is None or spec.origin is None:
        raise InvalidConfigError(
            f"pysyncobj {VERSION} is not installed: install it, or set cluster.raft = own"
        )
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
    """Replaces the module `random`, of which the library uses one function."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.random = draw


class _NoPoller:
    """Replaces the poller: there are no sockets; messages and time come from the caller."""

    def poll(self, timeout: float) -> None:
        """Return at once."""


class _NoSerializer:
    """Replaces the serializer: our own code makes, checks, stores and sends snapshots."""

    def __init__(self, idle: int) -> None:
        self._idle = idle
        self.arrived: Any = None

    def checkSerializing(self) -> tuple[int, None]:  # noqa: N802 - the library's name
        """Report that nothing is being written."""
        return self._idle, None

    def setTransmissionData(self, arrived: Any) -> bool:  # noqa: N802
        """Return whether there is a complete, checked snapshot."""
        self.arrived = arrived
        return arrived is not None

    def cancelTransmisstion(self, node: Any) -> None:  # noqa: N802
        """Do nothing: this object transfers nothing."""


class _NoPickle:
    """Replaces the module `pickle`: the library must never use it."""

    def __getattr__(self, name: str) -> NoReturn:
        raise LogFailedError(f"pysyncobj tried to use pickle.{name}")
