"""Issue 11, item 11: Ctrl-C while a command still loads its modules, and in the guided tour."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headwater.loading import ends_without_a_trace

# The body of a module that the program loads early: prints a line, and is slow.
_SLOW = """
import sys, time
sys.stdout.write("loading\\n")
sys.stdout.flush()
time.sleep(100)
"""


# A process that is started in a shell's background ignores interrupts, and so do its children.
_AS_IN_A_TERMINAL = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("program", "slow_module"),
    [(("headwater", "query", "select 1"), "typer"), (("headwater.demo",), "pyarrow")],
    ids=["command", "demo"],
)
def test_an_interrupt_while_modules_are_loaded_leaves_no_trace(
    tmp_path: Path, program: tuple[str, ...], slow_module: str
) -> None:
    """The process ends by the signal, which a shell reports as 130; before, a trace was printed."""
    (tmp_path / f"{slow_module}.py").write_text(_SLOW)
    process = subprocess.Popen(
        [sys.executable, "-c", _AS_IN_A_TERMINAL, *program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (-signal.SIGINT, "")


_BUILDING = """
import signal, sys, time
import typer.main
from headwater.cli import main

def slow(*_):
    print("loading", flush=True)
    time.sleep(100)

typer.main.get_command = slow
signal.signal(signal.SIGINT, signal.default_int_handler)
main.main()
"""


def test_an_interrupt_while_the_command_line_is_built_leaves_no_trace() -> None:
    """Typer needs half a second for that on a busy machine."""
    process = subprocess.Popen(
        [sys.executable, "-c", _BUILDING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")


def test_after_loading_an_interrupt_means_what_it_meant() -> None:
    """Python's own handler is back; a process that ignores interrupts goes on ignoring them."""
    for handler in (signal.default_int_handler, signal.SIG_IGN):
        before = signal.signal(signal.SIGINT, handler)
        try:
            with ends_without_a_trace():
                within = signal.getsignal(signal.SIGINT)
            after = signal.getsignal(signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, before)
        assert after is handler
        assert within is (signal.SIG_DFL if handler is not signal.SIG_IGN else signal.SIG_IGN)


def test_in_another_thread_loading_changes_nothing() -> None:
    """Only the main thread may set handlers."""
    seen: list[object] = []

    def load() -> None:
        with ends_without_a_trace():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


_TOUR = """
import signal, subprocess, sys, time
from pathlib import Path
from headwater.demo import tour

def slow(folder, _count):
    (folder / "some").write_text("data")
    child = subprocess.Popen(["sh", "-c", "sleep 1000 & wait"], start_new_session=True)
    print(folder, flush=True)
    try:
        time.sleep(1000)
    finally:
        print("not reached")

tour._tour = slow
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(tour.main([]))
"""


def test_an_interrupt_of_the_tour_is_one_line() -> None:
    """Exit code 130, no trace, no process and no folder left; before, traces were printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", _TOUR],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert folder.is_dir()
    process.send_signal(signal.SIGINT)
    # Both pipes are at their end only when the last child that inherited them has ended.
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "Interrupted.\n")
    assert not folder.exists()


_ORPHANS = """
import subprocess
from headwater.demo.processes import adopt_orphans, kill_children, wait_for_children
adopt_orphans()
subprocess.Popen(["sh", "-c", "sh -c 'sleep 1000 & wait' & wait"])
kill_children(30.0)
print(wait_for_children(0.0))
"""


def test_children_of_children_are_killed_too() -> None:
    """An orphan becomes a child of the tour, and is killed then."""
    done = subprocess.run(
        [sys.executable, "-c", _ORPHANS], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
