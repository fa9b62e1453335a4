"""The data keys of a stream in the metadata: stored, replaced one after the other, refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from broker.core.metadata.apply import apply
from broker.core.metadata.commands import CreateStream, RotateDataKey, decode, encode_new
from broker.core.metadata.size import weigh
from broker.core.metadata.snapshot import decode_snapshot, encode_snapshot
from broker.core.metadata.state import (
    FEATURE_LEVEL_ALTERED,
    FEATURE_LEVEL_STREAMS,
    MetadataState,
)
from broker.errors import (
    FeatureLevelError,
    InvalidRequestError,
    InvalidStreamError,
    MetadataFullError,
    StreamChangedError,
    StreamRecreatedError,
    UnknownStreamError,
)
from broker.model.data_key import DATA_KEYS_MAX, DataKey
from broker.model.ids import BrokerId, StreamUuid
from broker.model.stream import Stream, StreamConfig

UUID = StreamUuid("00000000-0000-4000-8000-000000000001")
ME = BrokerId("b")


def key(version: int, **facts: Any) -> DataKey:
    """Return a wrapped key."""
    values = {"provider": "file", "wrapping_key": "k", "wrapped": "AAAA", "created_us": 1}
    return DataKey(version=version, **{**values, **facts})


def stream(*keys: DataKey, encryption: str = "xaes-256-gcm") -> Stream:
    """Return a stream with these data keys."""
    config = StreamConfig(subject="s", encryption=encryption)  # type: ignore[arg-type]
    return Stream(name="s", uuid=UUID, config=config, created_us=1, table_name="s", data_keys=keys)


def created(one: Stream, level: int = FEATURE_LEVEL_STREAMS) -> tuple[MetadataState, Any]:
    """Create it in an empty cluster; return the state and the reply."""
    state = MetadataState(feature_level=level)
    return apply(state, decode(encode_new(CreateStream(stream=one, leader=ME))))


def rotated(state: MetadataState, expected: Stream, wanted: Stream, **limits: Any) -> Any:
    """Apply a rotation as it comes from the log."""
    return apply(
        state, decode(encode_new(RotateDataKey(expected=expected, wanted=wanted, **limits)))
    )


def test_keys_are_part_of_the_state_and_weigh() -> None:
    """A snapshot has them; a stream without encryption is stored as earlier builds stored it."""
    state, _ = created(stream(key(1)))
    assert state.streams["s"].data_keys == (key(1),)
    assert decode_snapshot(encode_snapshot(state, 1)) == (state, 1)
    assert state.weight == weigh(state)
    plain, _ = created(stream(encryption="none"), level=1)
    assert state.weight > plain.weight
    told = json.loads(plain.to_json())["streams"]["s"]
    assert "data_keys" not in told
    assert "encryption" not in told["config"]
    command = json.loads(encode_new(CreateStream(stream=stream(encryption="none"), leader=ME)))
    assert "data_keys" not in command["stream"]
    assert "encryption" not in command["stream"]["config"]


def test_a_new_key_comes_after_the_others() -> None:
    """The others may be wrapped anew; a repeated command changes nothing."""
    state, _ = created(stream(key(1)))
    wanted = stream(key(1, wrapping_key="newer"), key(2, wrapping_key="newer"))
    after, reply = rotated(state, stream(key(1)), wanted)
    assert reply == {"uuid": UUID, "changed": True}
    assert after.streams["s"] == wanted
    assert after.weight == weigh(after)
    assert rotated(after, stream(key(1)), wanted) == (after, {"uuid": UUID, "changed": False})


@pytest.mark.parametrize(
    ("expected", "wanted", "refusal"),
    [
        (stream(key(1)), stream(key(1)), InvalidRequestError),
        (stream(key(1)), stream(key(1), key(2), key(3)), InvalidRequestError),
        (stream(key(1)), replace(stream(key(1), key(2)), table_name="t"), InvalidRequestError),
        (stream(key(1, wrapping_key="z")), stream(key(1), key(2)), StreamChangedError),
        (replace(stream(key(1)), name="t"), stream(key(1), key(2)), UnknownStreamError),
        (
            replace(stream(key(1)), uuid=StreamUuid(UUID[:-1] + "2")),
            stream(key(1), key(2)),
            StreamRecreatedError,
        ),
    ],
)
def test_another_change_is_refused(
    expected: Stream, wanted: Stream, refusal: type[Exception]
) -> None:
    """Nothing but one more key; and only of the stream that the sender looked at."""
    state, _ = created(stream(key(1)))
    after, reply = rotated(state, expected, wanted)
    assert after == state
    assert type(reply.error) is refusal


def test_builds_that_cannot_read_such_batches_are_kept_out() -> None:
    """Both commands need the level."""
    _, reply = created(stream(key(1)), level=FEATURE_LEVEL_ALTERED)
    assert type(reply.error) is FeatureLevelError
    state, _ = created(stream(key(1)))
    low = replace(state, feature_level=FEATURE_LEVEL_ALTERED)
    assert type(rotated(low, stream(key(1)), stream(key(1), key(2)))[1].error) is FeatureLevelError


def test_a_stream_has_keys_if_it_is_encrypted_and_only_then() -> None:
    """Else a leader would have nothing to encrypt with, or keys that nobody needs."""
    for one in (stream(), stream(key(1), encryption="none")):
        _, reply = created(one)
        assert type(reply.error) is InvalidStreamError


def test_the_metadata_may_be_full() -> None:
    """A key is growth, so it is refused like a new stream."""
    state, _ = created(stream(key(1)))
    command = RotateDataKey(
        expected=stream(key(1)), wanted=stream(key(1), key(2)), weight_max=state.weight
    )
    after, reply = apply(state, command)
    assert after == state
    assert type(reply.error) is MetadataFullError  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "facts",
    [
        {"version": 0}, {"version": 1 << 31}, {"provider": ""}, {"wrapping_key": ""},
        {"wrapping_key": "a\nb"}, {"wrapping_key": "k" * 2049}, {"wrapped": "not base64"},
        {"wrapped": "A" * 8196},
    ],
)  # fmt: skip
def test_a_data_key_is_bounded(facts: dict[str, Any]) -> None:
    """It is part of the metadata, and its names reach terminals."""
    with pytest.raises(InvalidStreamError):
        key(**{"version": 1, **facts})


def test_versions_count_from_one_and_are_few() -> None:
    """A list with a hole is no list of keys."""
    for keys in ([key(2)], [key(1), key(3)], [key(one + 1) for one in range(DATA_KEYS_MAX + 1)]):
        with pytest.raises(InvalidStreamError):
            stream(*keys)


@pytest.mark.parametrize(
    "values",
    [
        7,
        [7],
        [{}],
        [{"version": "1", "provider": "f", "wrapping_key": "k", "wrapped": "", "created_us": 1}],
    ],
)
def test_keys_from_outside_are_checked(values: Any) -> None:
    """A stream is read from commands, snapshots and tables."""
    body = {**stream(key(1)).to_dict(), "data_keys": values}
    with pytest.raises(InvalidStreamError):
        Stream.from_dict(body)
    good = stream(key(1), key(2))
    assert Stream.from_dict(json.loads(good.to_json())) == good
