"""A standalone Spark cluster on the loopback, from the pyspark package: a master and workers.

Each is a child process of its own, started by spark-class, and ended by its own handle. Nothing
listens beyond 127.0.0.1; ports are free ones.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyspark

from headwater.local.embedded import free_port
from simkit.children import ended, wait_for_line

LOOPBACK: Final = "127.0.0.1"
HOME: Final = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_START_S: Final = 120.0


@contextmanager
def spark_cluster(
    folder: Path,
    *,
    workers: int = 2,
    cores: int = 1,
    memory: str = "1g",
    environment: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Run a cluster while the block runs; yield its address, ``spark://127.0.0.1:port``.

    Args:
        folder: where logs and the workers' directories go.
        workers: how many.
        cores: cores of each.
        memory: memory that each gives to executors.
        environment: what workers, and so executors, have in their environment, such as the
            credentials of the object store.
    """
    folder.mkdir(parents=True, exist_ok=True)
    base = {**os.environ, **(environment or {}), "SPARK_HOME": str(HOME)}
    base |= {"SPARK_LOCAL_IP": LOOPBACK, "SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_MEMORY": "256m"}
    port = free_port()
    url = f"spark://{LOOPBACK}:{port}"
    with ExitStack() as stack:
        started = [_start(stack, folder / "master.log", base, _MASTER, "--host", LOOPBACK,
                          "--port", str(port), "--webui-port", "0")]  # fmt: skip
        wait_for_line(started[0], folder / "master.log", "New state: ALIVE", _START_S)
        for number in range(workers):
            log = folder / f"worker{number}.log"
            worker = _start(stack, log, base, _WORKER, "--host", LOOPBACK, "--port", "0",
                            "--webui-port", "0", "--cores", str(cores), "--memory", memory,
                            "--work-dir", str(folder / f"work{number}"), url)  # fmt: skip
            wait_for_line(worker, log, "Successfully registered with master", _START_S)
        yield url


def _start(
    stack: ExitStack, log: Path, environment: Mapping[str, str], main: str, *arguments: str
) -> subprocess.Popen[bytes]:
    command = [str(HOME / "bin" / "spark-class"), main, *arguments]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=dict(environment), cwd=log.parent,
        )  # fmt: skip
    return stack.enter_context(ended(process))
