"""Issue 11, item 9: a following reader survives the restart of a single broker."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from crashkit.stage import Stage, staged

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def _publish(stage: Stage, *values: bytes) -> None:
    with stage.client.producer("s") as producer:
        for value in values:
            producer.send([value]).result(60)


def _restart(stage: Stage) -> None:
    stage.broker.kill()
    stage.broker.start()
    stage.broker.wait_ready()


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_python_follower_goes_on_after_a_restart(tmp_path: Path, start: str) -> None:
    """Also before its first record: records stored right after the restart are in its read."""
    with staged(tmp_path) as stage:
        stage.client.create_stream("s")
        if start == "earliest":
            _publish(stage, b"1")
        seen: SimpleQueue[bytes] = SimpleQueue()
        with stage.client.fetch("s", start=start, follow=True) as follower:  # type: ignore[arg-type]

            def follow() -> None:
                for part in follower:
                    for value in part.batch["value"].to_pylist():
                        seen.put(value)

            reader = threading.Thread(target=follow)
            reader.start()
            if start == "earliest":
                assert seen.get(timeout=60) == b"1"
            _restart(stage)
            _publish(stage, b"2")
            assert seen.get(timeout=60) == b"2"
            _restart(stage)
            _publish(stage, b"3", b"4")
            assert [seen.get(timeout=60) for _ in range(2)] == [b"3", b"4"]
            follower.cancel()
            reader.join(60)
        assert not reader.is_alive()


def test_the_command_goes_on_after_a_restart(tmp_path: Path) -> None:
    """``headwater subscribe --follow`` prints the next record, and no error."""
    with staged(tmp_path) as stage:
        stage.client.create_stream("s")
        _publish(stage, b"1")
        command = [sys.executable, "-m", "headwater", "subscribe", "s", "--follow", "--count", "2"]
        following = subprocess.Popen(
            [*command, "--format", "raw", "--server", stage.broker.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert following.stdout is not None
            assert following.stdout.readline() == b"1\n"
            _restart(stage)
            _publish(stage, b"2")
            rest, complaints = following.communicate(timeout=60)
            assert (rest, following.returncode) == (b"2\n", 0), complaints
        finally:
            following.kill()
            following.wait()
