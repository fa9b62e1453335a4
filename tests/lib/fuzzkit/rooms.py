"""Finds the decoders of the product, so that a new one without an entry fails a test. Pure.

Two rules, by the syntax tree. A *decoder* is a public function or method with a decoder's name
(``decode…``, ``parse…``, ``from_bytes``, …). A *reading module* calls what turns bytes or text
into values: ``json.loads``, ``struct``'s unpack, protobuf's parse, Arrow's and Parquet's readers.
Each decoder, and at least one function of each reading module, is named by an entry, or stands in
the table of ``tests/tidy/test_fuzz_registry.py`` with the reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final, TypeGuard

NAME: Final = re.compile(
    r"(decode|parse)(d|_[a-z_]+)?$|from_(bytes|dict|text|json|state|ticket|path|wire|values)$"
    r"|unseal$|load$"
)
_READS: Final = (
    "json.loads", "json.load", "tomllib.loads", "tomllib.load", "zlib.decompress",
    "zlib.decompressobj", "gzip.decompress", "base64.b64decode", "int.from_bytes",
    "pq.ParquetFile", "pa.ipc.open_stream", "pa.ipc.open_file", "pa.ipc.read_record_batch",
    "pa.ipc.read_schema", "x509.load_pem_x509_crl", "x509.load_pem_x509_certificates",
)  # fmt: skip
_METHODS: Final = frozenset(
    {"unpack", "unpack_from", "iter_unpack", "ParseFromString", "FromString", "receive_data"}
)


def decoders_in(files: Mapping[str, str]) -> set[str]:
    """Return the dotted names of the public functions with a decoder's name."""
    return {
        f"{_module(path)}.{name}"
        for path, text in files.items()
        for name in _functions(_tree(text))
        if NAME.match(name.rpartition(".")[2])
    }


def readers_in(files: Mapping[str, str]) -> set[str]:
    """Return the dotted names of the modules that turn bytes into values by themselves."""
    return {_module(path) for path, text in files.items() if _reads(_tree(text))}


@cache  # both rules look at the same files
def _tree(text: str) -> ast.Module:
    return ast.parse(text)


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _functions(node: ast.AST, prefix: str = "") -> Iterator[str]:
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.ClassDef):
            yield from _functions(one, f"{prefix}{one.name}.")
        elif _is_public(one):
            yield f"{prefix}{one.name}"


def _is_public(one: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Tell whether a node is a public function; those of a Protocol have a docstring only."""
    if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) or one.name.startswith("_"):
        return False
    return len(one.body) > 1 or not isinstance(one.body[0], ast.Expr)


def _dotted(node: ast.expr) -> str:
    """Return a dotted name; a node that is none ends with a question mark."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _reads(tree: ast.AST) -> bool:
    called = (one.func for one in ast.walk(tree) if isinstance(one, ast.Call))
    return any(
        isinstance(one, ast.Attribute) and (one.attr in _METHODS or _dotted(one) in _READS)
        for one in called
    )
