"""Ends Spark at once, without any output: for a process that is about to end itself."""

from __future__ import annotations

from pyspark import SparkContext


def kill_jvm() -> None:
    """Kill the JVM that this process has started, if it has started one. Any thread."""
    gateway = getattr(SparkContext, "_gateway", None)
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.kill()
