"""A broker's process does not import pandas."""

from __future__ import annotations

import subprocess
import sys

import pytest

_LISTS = "import pyarrow as pa; pa.array([b'x', None]); pa.array([{'a': 1}]); import sys; "
_TELL = "print('pandas' in sys.modules)"


def _run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_arrays_of_lists_do_not_import_pandas() -> None:
    """Ingest makes such arrays for every batch, and the import takes 0.7 s."""
    pytest.importorskip("pandas", reason="there is nothing to keep out without it")
    keep = "from broker.process.arrow_without_pandas import keep_pandas_out; keep_pandas_out(); "
    assert _run(_LISTS + _TELL) == "True", (
        "pyarrow does not import pandas any more: drop the workaround"
    )
    assert _run(keep + _LISTS + _TELL) == "False"


def test_pandas_itself_can_still_be_imported() -> None:
    """Only pyarrow is told that there is no pandas, and only once."""
    pytest.importorskip("pandas", reason="there is nothing to keep out without it")
    keep = "from broker.process.arrow_without_pandas import keep_pandas_out; keep_pandas_out(); "
    assert _run(keep + "import pandas, sys; " + _TELL) == "True"


def test_the_entry_point_uses_it() -> None:
    """``python -m broker`` has decided before it runs the daemon, which makes arrays.

    The garbage collector, which rests while the daemon is imported, is at work again.
    """
    program = (
        "import gc, sys; from broker.__main__ import main; from broker.process import daemon; "
        "daemon.run = lambda loaded: 0; code = main([]); "
        + _LISTS
        + "print(code, 'pandas' in sys.modules, gc.isenabled())"
    )
    assert _run(program) == "0 False True"
