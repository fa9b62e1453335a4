"""Generate the Python stubs of ``proto/`` into ``broker/wire``, or check the committed ones.

A source's path below ``proto/`` is the import path of its stub, so stubs import each other without
any rewriting. Stubs are committed, because neither an install nor a Spark cluster has a compiler.
``--check`` compares them with fresh ones by the pinned compiler: no stub may differ, be missing, or
have no source.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "proto"
STUB_PATTERNS = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")
_SERVICE = re.compile(r"^\s*service\s+\w+", re.MULTILINE)


def generate(out: Path) -> None:
    """Write the stubs of every source below ``out``.

    Only a source that declares a service gets a gRPC stub: importing one loads grpc, which the
    modules that merely speak a message format must not do.
    """
    for source in sorted(SOURCES.rglob("*.proto")):
        arguments = ["protoc", f"--proto_path={SOURCES}", f"--python_out={out}", f"--pyi_out={out}"]
        if _SERVICE.search(source.read_text(encoding="utf-8")):
            arguments.append(f"--grpc_python_out={out}")
        if protoc.main([*arguments, str(source)]) != 0:
            raise SystemExit(f"protoc refused {source.relative_to(ROOT)}")


def stubs(root: Path) -> dict[str, bytes]:
    """Return the stubs below ``root/broker/wire``: path relative to ``root`` -> content."""
    wire = root / "broker" / "wire"
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for pattern in STUB_PATTERNS
        for path in sorted(wire.rglob(pattern))
    }


def drift() -> list[str]:
    """Compare the committed stubs with fresh ones; return one sentence for each difference."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = stubs(Path(scratch))
    committed = stubs(ROOT)
    return [
        *(f"{path} is missing" for path in sorted(fresh.keys() - committed.keys())),
        *(f"{path} has no source" for path in sorted(committed.keys() - fresh.keys())),
        *(
            f"{path} differs from a fresh stub"
            for path in sorted(fresh.keys() & committed.keys())
            if fresh[path] != committed[path]
        ),
    ]


def main() -> int:
    """Generate, or with ``--check`` only compare; return 1 if a stub differs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, report differences")
    if not parser.parse_args().check:
        for path in stubs(ROOT):
            (ROOT / path).unlink()
        generate(ROOT)
        return 0
    differences = drift()
    for difference in differences:
        sys.stderr.write(f"{difference}: run `make protos`\n")
    return 1 if differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
