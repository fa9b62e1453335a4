"""A process that has loaded the broker, and forks one for each request: ``fork_server.py SOCKET``.

SOCKET is the number of a descriptor. A request is a line of JSON, its answer a number. A forked
process is what ``python -m broker`` is: it has a session, output, environment, folder and chance of
its own, and the kernel kills it when this process dies. For forked_brokers.py.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1
# What a broker loads until it serves, but for the libraries that are a choice.
# tests/integration/broker/test_forked_start.py fails if something is missing here.
_MODULES: Final = (
    "broker.__main__", "broker.process.arrow_without_pandas", "broker.process.daemon",
    "dateutil.relativedelta", "deltalake", "encodings.idna", "pyarrow.parquet",
    "tiering.store.local_store",
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Serve until the other end is closed; in a forked process, be a broker."""
    sys.path[0] = str(Path.cwd())  # as with -m; this file's folder is nobody's to import from
    from broker.process.allocator import share_with_arrow
    from broker.process.quick_imports import import_structlog, quick_imports

    share_with_arrow()  # as the command does, before anything imports Arrow
    with quick_imports():
        import_structlog()
        for name in _MODULES:
            importlib.import_module(name)
    asked = serve(socket.socket(fileno=int(arguments[0])))
    if asked is None:
        return 0
    become(asked)
    from broker.__main__ import main as be_broker

    return be_broker(asked["arguments"])


def serve(link: socket.socket) -> dict[str, Any] | None:
    """Answer requests: fork, or reap a process that has ended. Return a request in its child."""
    with link, link.makefile("r") as lines:
        for line in lines:
            asked: dict[str, Any] = json.loads(line)
            if "reap" in asked:
                answer = os.waitstatus_to_exitcode(os.waitpid(asked["reap"], 0)[1])
            else:
                answer = os.fork()
                if answer == 0:
                    return asked
            link.sendall(b"%d\n" % answer)
    return None


def become(asked: dict[str, Any]) -> None:
    """Take over the state that a process gets from the one that starts it."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for path, flags, numbers in (
        (os.devnull, os.O_RDONLY, (0,)),
        (asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, (1, 2)),
    ):
        opened = os.open(path, flags, 0o644)
        for number in numbers:
            os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.path[0] = asked["folder"]
    random.seed()  # else all would wait for equally long in an election


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
