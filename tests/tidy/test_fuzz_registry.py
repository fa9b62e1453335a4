"""Whether every decoder of the product has an entry in the fuzzer's registry.

Add a decoder, and ``test_every_decoder_is_fuzzed`` names it until a room of ``fuzzkit`` has an
entry with its name in ``covers``. What reads nothing from outside stands in the tables here, with
the reason.
"""

from __future__ import annotations

import importlib
from functools import reduce
from typing import Any, Final

import pytest

from fuzzkit import registry, rooms
from projectfiles import ROOT

_ROOMS: Final = ("broker", "tiering", "headwater", "spark_jobs/decode")
_GENERATED: Final = ("broker/wire/", "headwater/demo/")

# Functions that have a decoder's name and decode nothing from outside.
NO_DECODERS: Final = {
    "broker.adapters.raft_pysyncobj.pinned.load": "loads a library",
    "broker.adapters.tls.context.load": "the files are read by OpenSSL",
    "headwater.local_sql.parsing.parse_statement": "SQL of the user, read by sqlglot",
    "spark_jobs.decode.json_decoder._Counting.parse": "part of JsonDecoder.decode",
    "tiering.store.s3._Vended.load": "botocore's name for asking for credentials",
}

# Modules that turn bytes into values, none of them from outside, or behind an entry of another.
NO_READERS: Final = {
    "broker.adapters.liftbridge.subjects": "as stream_calls.decode and nats.envelope.decode",
    "broker.adapters.tls.certificates": "certificates and lists, read by OpenSSL",
    "broker.keys.wrapping": "keys of the keyring: read_keyring",
    "broker.keys.xaes": "a block of its own",
    "broker.model.data_key": "part of Stream.from_dict",
    "broker.own_sockets": "the kernel's answer",
    "broker.runtime.metadata.raft.machine": "replies of the state machine of this process",
    "headwater.cli.broker_check": "node.json, as claim_directory reads it",
    "headwater.extras": "pip's own file",
    "headwater.local.embedded": "the port file of a child process",
    "tiering.keys.sorting": "scratch files of the same call",
    "tiering.proof.statistics_proof": "statistics as commit_files.claims_in wrote them",
    "tiering.ship.compaction": "the stream that delta_table has read",
    "tiering.ship.segment_writer": "its own footer",
    "tiering.store.table_keys": "the name of a key in a footer that Parquet has read",
    "tiering.table.delta_append": "a schema as delta-rs writes it",
    "tiering.table.delta_maintenance": "metrics of delta-rs",
    "tiering.table.delta_table": "properties that delta-rs has read: Stream.from_dict",
}


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    """Return the product's sources, by path."""
    paths = (path for room in _ROOMS for path in (ROOT / room).rglob("*.py"))
    named = {path.relative_to(ROOT).as_posix(): path for path in paths}
    return {
        name: path.read_text(encoding="utf-8")
        for name, path in named.items()
        if not name.startswith(_GENERATED)
    }


def _covered() -> set[str]:
    return {name for one in registry.decoders().values() for name in one.covers}


def test_every_decoder_is_fuzzed(files: dict[str, str]) -> None:
    """A public function with a decoder's name is called by an entry, or the table says why not."""
    assert rooms.decoders_in(files) - _covered() == NO_DECODERS.keys()


def test_every_module_that_reads_is_fuzzed(files: dict[str, str]) -> None:
    """So is each module that calls json, struct, protobuf, Arrow or Parquet by itself."""
    covered = {name.rsplit(".", cut)[0] for name in _covered() for cut in (1, 2)}
    assert rooms.readers_in(files) - covered == NO_READERS.keys()


def test_what_entries_cover_is_there() -> None:
    """A function that was renamed is renamed in its entry, too."""
    for name in _covered():
        assert callable(_found(name)), name


def test_a_new_decoder_is_found() -> None:
    """The rules can fail: of each kind of decoder, one that no entry has."""
    text = "import json\nclass A:\n    def from_bytes(self, data): return json.loads(data)\n"
    assert rooms.decoders_in({"broker/new.py": text}) == {"broker.new.A.from_bytes"}
    assert rooms.readers_in({"broker/new.py": text}) == {"broker.new"}
    assert rooms.readers_in({"broker/new.py": "x = layout.unpack_from(data)"}) == {"broker.new"}
    protocol = 'class A:\n    def decode(self) -> None:\n        """Decode."""\n'
    assert not rooms.decoders_in({"broker/new.py": protocol})


def _found(name: str) -> Any:
    module, rest = name, list[str]()
    while True:
        try:
            return reduce(getattr, rest, importlib.import_module(module))
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest.insert(0, last)
