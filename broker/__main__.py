"""``python -m broker`` and ``headwater-broker``: parse the arguments, run the daemon."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from broker import config
from broker.errors import InvalidConfigError
from broker.process.allocator import share_with_arrow
from broker.process.exit_codes import EXIT_CONFIG
from broker.process.quick_imports import import_structlog, quick_imports


def main(arguments: list[str] | None = None) -> int:
    """Run a broker until it is told to stop; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="headwater-broker",
        description="Run one Headwater broker. Every key of the file can also be set as "
        "HEADWATER_<SECTION>_<KEY> in the environment, which wins.",
    )
    parser.add_argument("--config", type=Path, help="TOML file; without it, defaults")
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen beyond the loopback without TLS or identity; as access.insecure = true",
    )
    parsed = parser.parse_args(arguments)
    path = parsed.config or (Path(found) if (found := os.environ.get("HEADWATER_CONFIG")) else None)
    try:
        loaded = config.load(path, os.environ)
        if parsed.insecure:
            loaded = config.insecure(loaded)
    except InvalidConfigError as error:
        sys.stderr.write(f"headwater-broker: {error.message}\n")
        return EXIT_CONFIG
    share_with_arrow(config.arrow_bytes_max(loaded))
    with quick_imports():
        import_structlog()
        from broker.process import daemon  # noqa: PLC0415 - imports Arrow
    from broker.process.arrow_without_pandas import keep_pandas_out  # noqa: PLC0415 - the same

    keep_pandas_out()
    return daemon.run(loaded)


if __name__ == "__main__":
    sys.exit(main())
