"""The allocator keeps freed large blocks: a block is reused without a page fault."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import Final

import pytest

# Three blocks of 8 MiB, filled and freed, as batches are; the first turns are not counted.
_CHURN: Final = """
import resource, sys
from broker.process.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def turn(): return len([b"x" * (8 << 20) for _ in range(3)])
for _ in range(3): turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20): turn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_large_blocks_are_reused() -> None:
    """Sixty blocks of 2,048 pages cause fewer page faults than one block has pages."""
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", _CHURN, how], text=True))
        for how in ("kept", "given back")
    }
    assert faults["kept"] < 2048 < faults["given back"]


@pytest.mark.parametrize(
    ("given", "pool"), [({}, "system"), ({"ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}, "mimalloc")]
)
def test_arrow_uses_the_same_allocator(given: dict[str, str], pool: str) -> None:
    """Each entry point of a broker sets it, unless the environment chooses another one."""
    program = f"""
from broker.process.allocator import share_with_arrow
import headwater.cli.main, headwater.cli.server, headwater.cli.up_cluster, broker.__main__
assert share_with_arrow(), "pyarrow is imported too early"
{"import broker.process.daemon" if not given else ""}
import pyarrow
assert not share_with_arrow(), "it is too late"
print(pyarrow.default_memory_pool().backend_name)
"""
    others = {key: text for key, text in os.environ.items() if not key.startswith("ARROW_")}
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, text=True, env={**others, **given}).strip() == pool
