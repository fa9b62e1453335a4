"""A process that reads as a member of a consumer group, and notes what it does and is given.

``group_load.py`` starts it with a :class:`MemberTask` in JSON as its argument. At SIGTERM it leaves
the group and ends; any other end than 0, or by a kill, is a failure of the run.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path


def main() -> None:
    """Read until SIGTERM."""
    from chaoskit.actors.task import MemberTask

    task = MemberTask(**json.loads(sys.argv[1]))
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    if task.kind == "headwater":
        from chaoskit.actors.own_member import OwnMember

        OwnMember(task).run(over)
    else:
        from chaoskit.actors.lift_member import read_as_member

        read_as_member(task, over)


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[one]) for one in (2, 4)]
    main()
