"""A Spark Connect server with all that our own sessions have: Delta, S3A, the data source.

    python -m spark_jobs.connect_server --port 15002
    headwater.session(remote="sc://127.0.0.1:15002")

The server is an ordinary session of ours with Spark's Connect plugin in its JVM. The server plans
and runs everything, so only the server needs the jars and the credentials of the store. A client
needs the Python package too, for ``headwater.read``, but no JVM. The server listens on the loopback
unless an address is given. It asks for no password unless SPARK_CONNECT_AUTHENTICATE_TOKEN is set
on both sides.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiering.store.location import StoreConfig

PORT_DEFAULT: Final = 15002
_PLUGIN: Final = "org.apache.spark.sql.connect.SparkConnectPlugin"

# As Spark's own Connect servers have it; a PySpark session sets the first to false. Only with it
# does a planner see that its session is one of Connect, and refuse a batch that could move.
_ISOLATION: Final = {
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
}


@contextmanager
def connect_server(
    master: str | None = "local[*]",
    *,
    address: str = "127.0.0.1",
    port: int = PORT_DEFAULT,
    lake: StoreConfig | None = None,
    conf: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Serve Spark Connect from this process while the block runs; yield its ``sc://`` address.

    Args:
        master: as for :func:`spark_jobs.session.build_session`, like ``lake`` and ``conf``.
        address: the address to listen on.
        port: the port; 0 chooses a free one.
        lake: as for :func:`spark_jobs.session.build_session`.
        conf: as for :func:`spark_jobs.session.build_session`.

    Raises:
        InvalidConfigError, UnavailableError: as for a session.
    """
    from spark_jobs.session import build_session  # noqa: PLC0415  (--help starts no Spark)

    chosen = {
        "spark.plugins": _PLUGIN,
        "spark.connect.grpc.binding.address": address,
        "spark.connect.grpc.binding.port": str(port),
        **_ISOLATION,
        **(conf or {}),
    }
    session = build_session("headwater-connect", master, lake=lake, conf=chosen)
    try:
        yield f"sc://{address}:{port or _bound_port(session)}"
    finally:
        session.stop()


def _bound_port(session: SparkSession) -> int:
    """Return the free port that the plugin chose; only the JVM has it."""
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001  (PySpark has no public name)
    package = jvm.org.apache.spark.sql.connect.service
    service = getattr(getattr(package, "SparkConnectService$"), "MODULE$")
    return int(service.localPort())


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM; the address is the first line on stdout.

    While Spark starts, a signal ends the process at once.
    """
    parser = argparse.ArgumentParser(
        prog="python -m spark_jobs.connect_server", description=__doc__
    )
    parser.add_argument("--address", default="127.0.0.1", help="the address to listen on")
    parser.add_argument(
        "--port", type=int, default=PORT_DEFAULT, help="the port; 0 chooses a free one"
    )
    parser.add_argument("--master", default="local[*]", help="Spark's master")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a Spark setting"
    )
    args = parser.parse_args(argv)
    conf = dict(item.partition("=")[::2] for item in args.conf)
    stop = threading.Event()
    _handle(_end)
    with connect_server(args.master, address=args.address, port=args.port, conf=conf) as url:
        _handle(lambda *_: stop.set())  # a session takes SIGINT for itself when it begins
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        stop.wait()
    return 0


def _handle(handler: Callable[[int, FrameType | None], object]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> None:
    """End the process and its JVM; nothing has to be undone."""
    os.write(2, b"Interrupted.\n")
    if "pyspark" in sys.modules:
        from spark_jobs.ending import kill_jvm  # noqa: PLC0415  (imports PySpark)

        kill_jvm()
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
