"""The command ``headwater``, and ``python -m headwater`` where no console script is on the path.

The packages of the command line are an extra. Without them this module says in one line how to
install them.
"""

from __future__ import annotations

import sys

from broker.process.quick_imports import quick_imports
from headwater.extras import install_hint
from headwater.loading import ends_without_a_trace
from headwater.process_end import end_process

_EXIT_WRONG_REQUEST = 2
_OF_THE_COMMAND = ("typer", "rich", "click", "cryptography")


def main() -> None:
    """Run the command line and exit the process."""
    try:
        with ends_without_a_trace(), quick_imports():
            from headwater.cli.main import main as run  # noqa: PLC0415  # packages may be missing
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_THE_COMMAND:
            raise
        sys.stderr.write(
            f"headwater: the command needs the Python package {error.name!r}. "
            f"{install_hint('cli')}\n"
        )
        sys.exit(_EXIT_WRONG_REQUEST)
    try:
        run()
    except SystemExit as ended:
        end_process(ended.code)
        raise


if __name__ == "__main__":
    main()
