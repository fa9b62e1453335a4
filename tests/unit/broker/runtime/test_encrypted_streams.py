"""Encrypted streams on a real broker: what the disk has, who reads it, and what a lost key does."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from broker.codec.record_batch import HEADER_SIZE, decode_header
from broker.core.metadata.commands import AlterTenant, CreateTenant
from broker.errors import (
    EncryptionKeyError,
    FixedSettingError,
    HeadwaterError,
    InvalidRequestError,
    StreamExistsError,
)
from broker.model.replica_state import ReplicaState
from broker.model.stream import Stream, StreamConfig
from broker.model.tenant import Tenant
from broker.runtime import operations
from broker.runtime.stream_keys import StreamKeys
from simkit.brokers.lone_broker import STREAM, Running, image, running
from simkit.brokers.memory_broker import FakeClock
from simkit.encryption_keys import ENCRYPTION, FIRST, SECOND, stream_keys

SECRET = b"a value that nobody else may read"
KEYS = {"one": FIRST}


def create(live: Running, **settings: Any) -> str:
    """Create the encrypted stream; return its uuid."""
    config = StreamConfig(
        subject="s", encryption=ENCRYPTION, segment_bytes_max=4096, tiering=False, **settings
    )
    return live.broker.streams.create(STREAM, config).uuid


def all_bytes(folder: Path) -> bytes:
    """Return what all files of a data folder have."""
    return b"".join(one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file())


def versions(folder: Path) -> list[int]:
    """Return the key version of each batch of the only partition, as the disk has it."""
    found = []
    for segment in sorted(folder.glob("streams/*/0/*.log")):
        data, at = segment.read_bytes(), 64
        at = data.index(b"HWRB")
        while data[at : at + 4] == b"HWRB":
            header = decode_header(data, at)
            assert header.encrypted
            found.append(int.from_bytes(data[at + HEADER_SIZE :][:4], "little"))
            at += header.size
    return found


def test_the_disk_never_has_the_value(tmp_path: Path) -> None:
    """Readers get it, also after a restart; the folder has neither the value nor a key."""
    with running(tmp_path, keys=stream_keys(KEYS)) as live:
        create(live)
        assert live.put(SECRET, now_us=1).base_offset == 0
        assert live.put(SECRET * 3, SECRET, now_us=2).base_offset == 1
        assert live.rows() == [SECRET, SECRET * 3, SECRET]
    assert SECRET not in all_bytes(tmp_path)
    assert b"\x01" * 32 not in all_bytes(tmp_path)
    with running(tmp_path, keys=stream_keys(KEYS)) as live:
        assert live.rows() == [SECRET, SECRET * 3, SECRET]
        assert live.put(b"next").base_offset == 3


def test_a_stream_that_is_not_encrypted_has_the_bytes_that_it_always_had(tmp_path: Path) -> None:
    """The keys of other streams change nothing for it."""
    with running(tmp_path, keys=stream_keys(KEYS)) as live:
        live.broker.streams.create(STREAM, StreamConfig(subject="s", tiering=False))
        live.put(SECRET)
    assert SECRET in all_bytes(tmp_path)


@pytest.mark.parametrize("keys", [None, stream_keys({}), stream_keys({"one": "no key"})])
def test_nothing_is_created_without_a_usable_key(tmp_path: Path, keys: StreamKeys | None) -> None:
    """The error is the caller's at once, and the name stays free."""
    with running(tmp_path, keys=keys) as live:
        with pytest.raises(EncryptionKeyError):
            create(live)
        assert live.broker.streams.all() == []
        live.broker.streams.create(STREAM, StreamConfig(subject="s", tiering=False))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (None, "has no key provider"),
        (stream_keys({"other": SECOND}), "no key named 'one'"),
        (stream_keys({"one": SECOND}), "is not the key that wrapped"),
    ],
)
def test_a_broker_without_the_key_serves_the_other_streams(
    tmp_path: Path, keys: StreamKeys | None, told: str
) -> None:
    """That partition is closed to everybody, with the reason; nothing of it is changed."""
    with running(tmp_path, keys=stream_keys(KEYS)) as live:
        create(live)
        live.put(SECRET)
        live.broker.streams.create("open", StreamConfig(subject="o", tiering=False))
    before = {one: one.read_bytes() for one in tmp_path.glob("streams/*/0/*.log")}
    with running(tmp_path, keys=keys) as live:
        for _ in range(2):
            with pytest.raises(EncryptionKeyError, match=told):
                live.broker.partitions.handle(STREAM, 0)
            with pytest.raises(EncryptionKeyError, match=told):
                live.broker.partitions.standing(STREAM, 0)
            with pytest.raises(EncryptionKeyError, match=told):
                live.broker.partitions.writer(STREAM, 0)
        assert live.broker.partitions.handle("open", 0).leads
        (refused,) = live.broker.replicas.unopened().values()
        assert operations._state_of(refused) is ReplicaState.LOCKED
        assert refused.stream == STREAM or keys is None
    for path, data in before.items():
        assert path.read_bytes() == data
    with running(tmp_path, keys=stream_keys(KEYS)) as live:
        assert live.rows() == [SECRET]


def test_a_rotated_key_is_used_for_what_comes_and_the_old_one_for_what_is_there(
    tmp_path: Path,
) -> None:
    """Nothing is rewritten, and the provider's earlier key is not needed any more."""
    both = {"two": SECOND, "one": FIRST}
    with running(tmp_path, keys=stream_keys(KEYS)) as live:
        create(live)
        live.put(b"before")
    with running(tmp_path, keys=stream_keys(both)) as live:
        stream = live.broker.streams.rotate_key(STREAM, 1)
        assert [one.version for one in stream.data_keys] == [1, 2]
        assert {one.wrapping_key for one in stream.data_keys} == {"two"}
        assert live.broker.streams.rotate_key(STREAM, 1) == stream  # the answer was lost: not again
        live.put(b"after")
        assert live.rows() == [b"before", b"after"]
        live.broker.streams.rotate_key(STREAM, 2)
        live.put(b"last")
    assert versions(tmp_path) == [1, 2, 3]
    with running(tmp_path, keys=stream_keys({"two": SECOND})) as live:
        assert live.rows() == [b"before", b"after", b"last"]


def test_a_tenants_streams_have_the_tenants_key(tmp_path: Path) -> None:
    """Other streams the provider's; a rotation moves a stream to the key that is named by then."""
    config = StreamConfig(subject="s", encryption=ENCRYPTION, tiering=False)
    with running(tmp_path, keys=stream_keys({"one": FIRST, "two": SECOND})) as live:
        streams, metadata = live.broker.streams, live.broker.streams._metadata
        metadata.propose(CreateTenant(tenant=Tenant(name="shop", wrapping_key="two")))

        def wrapped_by(stream: Stream) -> list[str]:
            return [one.wrapping_key for one in stream.data_keys]

        assert wrapped_by(streams.create("other", config)) == ["one"]
        assert wrapped_by(streams.create("shop-in", config)) == ["two"]
        metadata.propose(AlterTenant(name="shop", wrapping_key="absent"))
        with pytest.raises(EncryptionKeyError, match="no key named 'absent'"):
            streams.create("shop-out", config)
        with pytest.raises(EncryptionKeyError, match="no key named 'absent'"):
            streams.rotate_key("shop-in", 1)
        assert wrapped_by(streams.get("shop-in")) == ["two"]
        metadata.propose(AlterTenant(name="shop", wrapping_key=""))
        assert wrapped_by(streams.rotate_key("shop-in", 1)) == ["one", "one"]


def test_only_an_encrypted_stream_has_a_key_to_rotate(tmp_path: Path) -> None:
    """A plain one is refused by name."""
    with running(tmp_path, keys=stream_keys(KEYS)) as live:
        live.broker.streams.create(STREAM, StreamConfig(subject="s", tiering=False))
        with pytest.raises(InvalidRequestError, match="not encrypted"):
            live.broker.streams.rotate_key(STREAM, 0)


def test_a_rotation_that_the_provider_refuses_changes_nothing(tmp_path: Path) -> None:
    """The stream goes on with its present key."""
    with running(tmp_path, keys=stream_keys(KEYS)) as live:
        create(live)
        live.put(b"before")
    with running(tmp_path, keys=stream_keys(KEYS)) as live:
        live.broker.streams._keys = stream_keys({"other": SECOND})  # the keyring was exchanged
        with pytest.raises(EncryptionKeyError):
            live.broker.streams.rotate_key(STREAM, 1)
        assert len(live.broker.streams.get(STREAM).data_keys) == 1
        live.put(b"after")
        assert live.rows() == [b"before", b"after"]


def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Recovery checks checksums of encrypted bytes, so it needs no key; reads do."""
    values = [b"%03d" % one + SECRET for one in range(40)]
    with running(tmp_path / "origin", keys=stream_keys(KEYS)) as live:
        create(live)
        for number, value in enumerate(values):
            if number == 20:
                live.broker.streams.rotate_key(STREAM, 1)
            live.put(value)
        image(live.folder, tmp_path / "killed")
    with running(tmp_path / "killed", keys=stream_keys(KEYS)) as live:
        assert live.rows() == values


def test_message_ids_of_encrypted_records_are_read_at_a_restart(tmp_path: Path) -> None:
    """A publisher that tries again after the restart gets the first record's offset."""
    import pyarrow as pa

    from broker.codec.schema import HEADERS_TYPE

    headers = pa.array([[{"key": "Nats-Msg-Id", "value": b"m1"}]], HEADERS_TYPE)
    rows = pa.RecordBatch.from_pydict({"value": pa.array([SECRET]), "headers": headers})
    found: list[Any] = []
    for _ in range(2):
        with running(tmp_path, keys=stream_keys(KEYS)) as live:
            create(live)
            live.partition.writes.submit_records(rows, ["m1"], found.append)
            live.partition.maintenance.sync_below(live.partition.reads.log_end)
    assert [list(one.offsets) for one in found] == [[0], [0]]
    assert found[1].duplicates == {0}


@pytest.mark.parametrize("at", [HEADER_SIZE + 40, HEADER_SIZE + 10, HEADER_SIZE + 1])
def test_a_flipped_bit_is_named_damage(tmp_path: Path, at: int) -> None:
    """Of the ciphertext, the nonce or the key's version: the checksum finds it without a key."""
    with running(tmp_path, keys=stream_keys(KEYS)) as live:
        create(live)
        live.put(SECRET)
        live.put(SECRET)
    (segment,) = [one for one in tmp_path.glob("streams/*/0/*.log") if one.stat().st_size > 200]
    data = bytearray(segment.read_bytes())
    data[data.index(b"HWRB") + at] ^= 1
    segment.write_bytes(data)
    with running(tmp_path, keys=stream_keys(KEYS)) as live:
        with pytest.raises(HeadwaterError, match=r"damaged|checksum"):
            live.rows()
        live.partition._queue.call(lambda: None)  # a turn has passed
        assert live.partition.health.failure is not None


def test_a_forger_with_right_checksums_is_found_when_the_record_is_read(tmp_path: Path) -> None:
    """A batch that was moved within the disk passes every checksum, and does not open."""
    from dataclasses import replace

    from broker.codec.checksum import crc32c
    from broker.codec.record_batch import encode_stored

    with running(tmp_path, keys=stream_keys(KEYS)) as live:
        create(live)
        live.put(b"first" * 9)
        live.put(b"other" * 9)
        live.put(b"third" * 9)  # the last batch is known by its mark in the promise
    (segment,) = [one for one in tmp_path.glob("streams/*/0/*.log") if one.stat().st_size > 200]
    data = bytearray(segment.read_bytes())
    first = data.index(b"HWRB")
    one = decode_header(data, first)
    second = first + one.size
    two = decode_header(data, second)
    body = bytes(data[first + HEADER_SIZE : second])
    forged = replace(two, body_crc=crc32c(body))
    data[second : second + two.size] = encode_stored(forged) + body
    segment.write_bytes(data)
    with running(tmp_path, keys=stream_keys(KEYS)) as live:
        assert live.partition.health.failure is None  # as far as checksums can tell
        with pytest.raises(HeadwaterError, match="offset 1 does not open"):
            live.rows()


def test_no_log_line_and_no_error_has_a_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the wrapping key nor a data key, in any of their writings."""
    caplog.set_level(logging.DEBUG)
    keys = stream_keys(KEYS)
    plain: list[bytes] = []
    keys._random = lambda size: plain.append(bytes(range(size))) or plain[-1]  # type: ignore[func-returns-value]
    with running(tmp_path, keys=keys) as live:
        create(live)
        live.broker.streams.rotate_key(STREAM, 1)
        live.put(SECRET)
        told = repr(live.broker.streams.get(STREAM)) + repr(keys) + repr(vars(keys))
    out = "".join(capsys.readouterr()) + caplog.text + told
    assert plain
    for secret in (b"\x01" * 32, *plain):
        for writing in (secret.hex(), repr(secret)[2:-1], FIRST):
            assert writing not in out
    assert bytes(range(32)) not in all_bytes(tmp_path)


def test_a_plain_stream_does_not_become_an_encrypted_one(tmp_path: Path) -> None:
    """Neither by creating it again nor by a change: the records on the disk would stay plain."""
    with running(tmp_path, keys=stream_keys(KEYS)) as live:
        live.broker.streams.create(STREAM, StreamConfig(subject="s", tiering=False))
        with pytest.raises(StreamExistsError):
            create(live)
        with pytest.raises(FixedSettingError, match="encryption"):
            live.broker.streams.alter(STREAM, {"encryption": ENCRYPTION})


def test_a_provider_that_is_away_is_asked_again(tmp_path: Path) -> None:
    """Without a restart, and not for every caller: the partition opens when the key is there."""
    with running(tmp_path, keys=stream_keys(KEYS)) as live:
        create(live)
        live.put(SECRET)
    keys, clock = stream_keys({"other": SECOND}), FakeClock()
    keys._clock = clock
    with running(tmp_path, keys=keys) as live:
        keys._provider = stream_keys(KEYS)._provider  # the operator brings the key back
        with pytest.raises(EncryptionKeyError):  # too soon: the provider is not asked again yet
            live.broker._open_what_waits()
        clock.advance(us=10_000_000)
        live.broker._open_what_waits()
        assert live.rows() == [SECRET]


def test_the_reason_is_known_while_the_provider_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow provider leaves no moment in which the closed partition has no reason."""
    with running(tmp_path, keys=stream_keys(KEYS)) as live:
        create(live)
    keys, clock = stream_keys({"other": SECOND}), FakeClock()
    keys._clock = clock
    with running(tmp_path, keys=keys) as live:
        told: list[type[Exception]] = []
        unwrap = keys._provider.unwrap

        def slow(*arguments: Any) -> bytes:
            for ask in (live.broker.partitions.handle, live.broker.partitions.standing):
                with pytest.raises(HeadwaterError) as caught:
                    ask(STREAM, 0)
                told.append(caught.type)
            return unwrap(*arguments)

        monkeypatch.setattr(keys._provider, "unwrap", slow)
        clock.advance(us=10_000_000)
        with pytest.raises(EncryptionKeyError):
            live.broker._open_what_waits()
    assert told == [EncryptionKeyError] * 2
