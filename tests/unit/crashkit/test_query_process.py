"""The processes of a query are found and killed, whatever their parents are by then."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import psutil

from crashkit.query_process import QueryProcess

# A driver whose fork server leaves a worker behind, as Spark's does when only that is killed.
_DRIVER = """
import subprocess, sys
worker = [sys.executable, "-c", "import time; time.sleep(600)", "pyspark.worker"]
quiet = "stdin=-3, stdout=-3, stderr=-3"
code = f"import subprocess; print(subprocess.Popen({worker}, {quiet}).pid)"
told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
print(told.stdout, end="", flush=True)
import signal; signal.pause()
"""


def test_a_worker_without_its_daemon_is_still_found(tmp_path: Path) -> None:
    """It belongs to the query by its session, and ends with it."""
    script = tmp_path / "driver.py"
    script.write_text(_DRIVER, encoding="utf-8")
    query = QueryProcess(tmp_path / "log", {})
    query.start([sys.executable, str(script)])
    try:
        while not (told := query.log_tail(1).strip()).isdigit():
            assert query.exit_code is None, query.log_tail()
        worker = psutil.Process(int(told))
        assert query.kill_workers(random.Random(1))
        worker.wait(30)
        assert not query.kill_workers(random.Random(1))
    finally:
        query.kill()
