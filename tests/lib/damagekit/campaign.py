"""Runs cases side by side, each in a forked process that is ended when its time is over.

The process that calls :func:`run_all` has loaded everything and has no thread of its own, so a case
begins in milliseconds. A case reports its progress through a pipe, and its looks at its end.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from damagekit import preloaded
from damagekit.case import run_case
from damagekit.catalogue import NOTHING, Case
from damagekit.golden import RETENTIONS, build
from damagekit.outcomes import Look, Outcome, worst

assert preloaded.MODULES, "loaded for every process that is forked here"
CASE_S: Final = 180.0
_PIPE_BYTES: Final = 1 << 20


@dataclass(slots=True)
class Result:
    """A case and its result."""

    case: Case
    looks: list[Look]
    seconds: float

    @property
    def outcome(self) -> Outcome:
        """The worst of all looks."""
        return worst(self.looks)

    @property
    def is_good(self) -> bool:
        """Tell whether the product may do so; undamaged it has to be exact."""
        return self.outcome.is_good and (self.case.damage != NOTHING or not self.outcome)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; looks that were exact are left out."""
        return {
            "case": self.case.name,
            "kind": self.case.entry.kind,
            "damage": self.case.damage,
            "state": self.case.state,
            "retention": self.case.retention,
            "outcome": self.outcome.name.lower(),
            "errors": sorted({look.error for look in self.looks if look.error}),
            "seconds": round(self.seconds, 2),
            "looks": [look.to_dict() for look in self.looks if look.outcome],
        }

    def why(self) -> str:
        """Return the first of the worst looks."""
        return next((str(look) for look in self.looks if look.outcome is self.outcome), "")


def build_worlds(folder: Path, seed: int) -> None:
    """Build every world, each in a forked process; what is there already is left. Blocks."""
    wanted = [f"{one}{suffix}" for one in RETENTIONS for suffix in ("", "-other")]
    children = {}
    for number, name in enumerate(wanted):
        if (folder / name / "info.json").exists():
            continue
        shutil.rmtree(folder / name, ignore_errors=True)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                build(folder / name, retention=name.partition("-")[0], seed=seed + number)
                code = 0
            except BaseException:  # noqa: BLE001  # this child ends here, whatever it was
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children[pid] = name
    for _ in range(len(children)):
        pid, status = os.wait()
        assert status == 0, f"world {children[pid]} could not be built"


@dataclass(slots=True)
class _Running:
    case: Case
    pid: int
    pipe: int
    folder: Path
    began_s: float = field(default_factory=time.monotonic)
    text: bytes = b""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began_s


def run_all(
    worlds: Path, scratch: Path, cases: Iterable[Case], *, side_by_side: int, keep: bool = False
) -> Iterator[Result]:
    """Run cases, so many at a time; yield results as they come. Blocks."""
    todo = iter(cases)
    running: dict[int, _Running] = {}
    numbers = iter(range(1 << 30))
    more = True
    while more or running:
        while more and len(running) < side_by_side:
            case = next(todo, None)
            if case is None:
                more = False
                break
            one = _fork(worlds, scratch / f"case{next(numbers)}", case)
            running[one.pipe] = one
        for pipe in select.select(list(running), [], [], 0.2)[0] if running else []:
            one = running[pipe]
            got = os.read(pipe, _PIPE_BYTES)
            one.text += got
            if not got:
                del running[pipe]
                yield _finished(one, keep)
        for one in list(running.values()):
            if one.seconds > CASE_S:
                del running[one.pipe]
                yield _hung(one, keep)


def _fork(worlds: Path, folder: Path, case: Case) -> _Running:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return _Running(case, pid, reader, folder)
    os.close(reader)
    os.setpgid(0, 0)
    code = 1
    try:
        looks = run_case(worlds, folder, case, lambda text: _tell(writer, {"at": text}))
        _tell(writer, {"looks": [look.to_dict() for look in looks]})
        code = 0
    except BaseException as error:  # noqa: BLE001  # this child ends here, whatever it was
        trace = traceback.format_exc()
        if isinstance(error, TimeoutError):
            _tell(writer, {"hung": str(error)})
        else:
            _tell(writer, {"failed": trace})
    finally:
        os._exit(code)


def _tell(pipe: int, body: dict[str, Any]) -> None:
    os.write(pipe, json.dumps(body).encode() + b"\n")


def _finished(one: _Running, keep: bool) -> Result:
    _end(one)
    looks, at = [], ""
    for line in one.text.splitlines():
        body = json.loads(line)
        at = body.get("at", at)
        if "looks" in body:
            looks = [Look.from_dict(values) for values in body["looks"]]
        if "hung" in body:
            looks = [_look(at, Outcome.HANG, body["hung"])]
        if "failed" in body:
            looks = [_look(at, Outcome.UNTYPED, f"the harness failed: {body['failed']}")]
    looks = looks or [_look(at, Outcome.CRASH, "the case ended without a word")]
    result = Result(one.case, looks, one.seconds)
    _tidy(one, keep)
    return result


def _hung(one: _Running, keep: bool) -> Result:
    _end(one)
    at = ""
    for line in one.text.splitlines():
        with suppress(ValueError):
            at = json.loads(line).get("at", at)
    result = Result(one.case, [_look(at, Outcome.HANG, f"after {CASE_S:.0f} s")], one.seconds)
    _tidy(one, keep)
    return result


def _look(at: str, outcome: Outcome, detail: str) -> Look:
    return Look(phase=at, reader="", stream="", outcome=outcome, detail=detail)


def _end(one: _Running) -> None:
    """End the case's process group, its broker with it, and take its status."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(one.pid, signal.SIGKILL)
    os.waitpid(one.pid, 0)
    os.close(one.pipe)


def _tidy(one: _Running, keep: bool) -> None:
    if not keep:
        shutil.rmtree(one.folder, ignore_errors=True)
