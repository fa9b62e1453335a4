"""How a campaign gives its processes a planted bug: by two variables that they inherit."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any, Final

from projectfiles import ROOT

SITE: Final = Path(__file__).with_name("site")


def known_plants() -> tuple[str, ...]:
    """Return the name of every bug that there is."""
    spec = importlib.util.spec_from_file_location("planted_bugs", SITE / "planted_bugs.py")
    assert spec is not None, "the file is there"
    assert spec.loader is not None, "it is Python"
    bugs: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bugs)
    return tuple(one.__name__ for one in (*bugs.BROKER, *bugs.PLANNER))


def plant(name: str | None) -> None:
    """Let every process that is started from now on import this very tree, and this bug."""
    os.environ["PYTHONPATH"] = str(ROOT)
    if name is not None:
        os.environ["PLANTED_BUG"] = name
        os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), str(ROOT)])
