"""Decoders of the metadata: commands, snapshots, small files of a data folder, the audit."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from broker.adapters.disk.files import DiskFiles
from broker.codec import audit_record
from broker.core.metadata import commands, snapshot
from broker.core.metadata.apply import apply
from broker.core.metadata.state import MetadataState
from broker.errors import HeadwaterError
from broker.model.stream import Stream
from broker.runtime.cluster import identity
from broker.runtime.ingest import sessions
from broker.runtime.metadata import controllers_note, lone_journal
from fuzzkit.decoder import Decoder, scratch
from fuzzkit.entries.in_logs import STREAM, UUID, sealed
from simkit.brokers import old_metadata
from simkit.brokers.metadata_rig import MetadataRig


def _snapshot_resealed(data: bytes) -> bytes:
    head, body = data[:60], data[60:]
    if len(head) < 60:
        return data
    digest = hashlib.blake2b(body, digest_size=32).digest()
    head = head[:16] + digest + struct.pack("<Q", len(body)) + head[56:]
    return sealed(56)(head) + body


def _sample(hint: Any, name: str = "") -> Any:
    """Return some value of an annotated type of the metadata."""
    named = {"StreamUuid": UUID, "BrokerId": "a", "LeaseId": "lease"}
    if getattr(hint, "__supertype__", None) is not None:
        return named.get(hint.__name__) or _sample(hint.__supertype__, name)
    if hint is Stream:
        return STREAM
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        required = (
            one
            for one in dataclasses.fields(hint)
            if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        )
        return hint(**{one.name: _sample(hints[one.name], one.name) for one in required})  # type: ignore[operator]
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple:
        return (_sample(args[0], name),)
    if origin is Mapping:
        return {"a": _sample(args[1], name)}
    if origin is Literal:
        return args[0]
    if origin in (types.UnionType, Union):
        return _sample(args[0], name)
    return {bool: True, int: 0 if name == "partition" else 5}.get(hint, _NAMES.get(name, "s"))


_NAMES: Final = {"name": "s", "key": f"{UUID}/0", "digest": "ab" * 32, "token_id": "ab" * 8}


def _commands() -> list[bytes]:
    found = []
    for kind in get_args(commands.Command):
        with suppress(HeadwaterError):  # a kind with narrower rules than its types
            found.append(commands.encode(_sample(kind)))
    return [one for one in found if _is_command(one)]


def _is_command(data: bytes) -> bool:
    try:
        commands.decode(data)
    except HeadwaterError:
        return False
    return True


def _state() -> MetadataState:
    rig = MetadataRig()
    for data in _commands():
        rig.state, _ = apply(rig.state, commands.decode(data))
    return rig.state


def _applied(data: bytes) -> object:
    """Apply a command of a broker: whatever it says, it changes the state or is rejected."""
    command = commands.decode(data)
    state, reply = apply(_STATE(), command)
    MetadataState.from_json(state.to_json())
    return reply


_STATE: Final = cache(_state)


def _in_folder(name: str, read: Callable[[DiskFiles], object]) -> Callable[[bytes], object]:
    """Return the decoder of a small file that a process finds in its data folder."""

    def decode(data: bytes) -> object:
        folder = scratch() / name.replace("/", "-")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        files = DiskFiles(folder)
        try:
            return read(files)
        finally:
            files.close()

    return decode


def _written(name: str, write: Callable[[DiskFiles], object]) -> bytes:
    """Return the file that a process writes into its data folder."""
    with TemporaryDirectory(prefix="headwater-fuzz-") as folder:
        files = DiskFiles(Path(folder))
        write(files)
        files.close()
        return (Path(folder) / name).read_bytes()


def _small_files() -> Iterator[Decoder]:
    yield Decoder(
        name="sessions",
        covers=("broker.runtime.ingest.sessions.begin_session",),
        decode=_in_folder("sessions.json", sessions.begin_session),
        make_seeds=lambda: [_written("sessions.json", sessions.begin_session)],
    )
    yield Decoder(
        name="clean_stop",
        covers=("broker.runtime.ingest.sessions.take_clean_stop",),
        decode=_in_folder("clean_stop.json", sessions.take_clean_stop),
        make_seeds=lambda: [
            _written("clean_stop.json", lambda files: sessions.note_clean_stop(files, "s"))
        ],
    )
    yield Decoder(
        name="controllers_note",
        covers=("broker.runtime.metadata.controllers_note.noted_controllers",),
        decode=_in_folder("controllers.json", controllers_note.noted_controllers),
        make_seeds=lambda: [b'["b1", "b2"]'],
    )
    claim = partial(identity.claim_directory, cluster="c", broker_id="b")
    yield Decoder(
        name="node",
        covers=("broker.runtime.cluster.identity.claim_directory",),
        decode=_in_folder("node.json", claim),
        make_seeds=lambda: [_written("node.json", claim)],
    )
    yield Decoder(
        name="lone_journal",
        covers=("broker.runtime.metadata.lone_journal.read_lone_journal",),
        decode=_in_folder(
            "metadata/journal", lambda files: lone_journal.read_lone_journal(files, answered=0)
        ),
        make_seeds=lambda: [old_metadata.journal_of(_commands()[:3])],
    )


def _audit_records() -> list[bytes]:
    note = audit_record.AuditNote(
        at_us=1, broker="b", principal="p", via="token", peer="x", door="flight", call="cut",
        resources=("stream:s",), result="ok",
    )  # fmt: skip
    return [audit_record.encode_note(note, chain="c", number=0, before="", lost=0)[0]]


def _audited(data: bytes) -> object:
    check = audit_record.AuditCheck()
    check.take(data, "here")
    check.take(data, "here")
    return check.problems


def decoders() -> Iterator[Decoder]:
    """Yield them all."""
    yield from _small_files()
    yield Decoder(
        name="metadata_command",
        covers=("broker.core.metadata.commands.decode",),
        decode=_applied,
        make_seeds=_commands,
    )
    yield Decoder(
        name="metadata_snapshot",
        covers=("broker.core.metadata.snapshot.decode_snapshot",),
        decode=snapshot.decode_snapshot,
        make_seeds=lambda: [
            snapshot.encode_snapshot(_STATE(), 9), snapshot.encode_snapshot(MetadataState(), 1),
        ],
        reseal=_snapshot_resealed,
    )  # fmt: skip
    yield Decoder(
        name="metadata_state",
        covers=("broker.core.metadata.state.MetadataState.from_json",),
        decode=lambda data: MetadataState.from_json(data.decode(errors="replace")),
        make_seeds=lambda: [_STATE().to_json().encode()],
    )
    yield Decoder(
        name="audit_record",
        covers=("broker.codec.audit_record.AuditCheck.take",),
        decode=_audited,
        make_seeds=_audit_records,
    )
