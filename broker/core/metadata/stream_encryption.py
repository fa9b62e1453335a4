"""The data keys of encrypted streams in the metadata: which change of them is allowed. Pure."""

from __future__ import annotations

from dataclasses import replace

from broker.core.metadata.commands import RotateDataKey
from broker.core.metadata.outcome import Applied, Rejected, refused_level
from broker.core.metadata.size import refused_growth, weight_of_stream
from broker.core.metadata.state import FEATURE_LEVEL_STREAMS, MetadataState
from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    InvalidStreamError,
    StreamChangedError,
    StreamRecreatedError,
    UnknownStreamError,
)
from broker.model.stream import Stream

_PURPOSE = "an encrypted stream"


def refused_encryption(state: MetadataState, wanted: Stream) -> HeadwaterError | None:
    """Return the error if a new stream lacks keys, or older builds could not read it, or None."""
    if bool(wanted.data_keys) != wanted.is_encrypted:
        return InvalidStreamError("an encrypted stream must have data keys, any other stream none")
    if not wanted.is_encrypted:
        if wanted.config.table_encryption != "plaintext":
            return InvalidStreamError(
                "table_encryption needs an encrypted stream: set encryption to xaes-256-gcm, too"
            )
        return None
    return refused_level(state, FEATURE_LEVEL_STREAMS, _PURPOSE)


def rotate_data_key(state: MetadataState, command: RotateDataKey) -> Applied:
    """Return the state in which the stream has its new data key."""
    wanted = command.wanted
    present = state.streams.get(command.expected.name)
    refused = _refusal(state, command, present)
    if refused is not None:
        return state, Rejected(refused)
    assert present is not None, "an absent stream is refused"
    if present == wanted:
        return state, {"uuid": present.uuid, "changed": False}
    count = len(state.partitions[present.uuid])
    weight = state.weight + weight_of_stream(wanted, count) - weight_of_stream(present, count)
    full = refused_growth(weight, command.weight_max)
    if full is not None:
        return state, Rejected(full)
    streams = {**state.streams, wanted.name: wanted}
    after = replace(state, streams=streams, partitions={**state.partitions}, weight=weight)
    return after, {"uuid": wanted.uuid, "changed": True}


def _refusal(
    state: MetadataState, command: RotateDataKey, present: Stream | None
) -> HeadwaterError | None:
    expected, wanted = command.expected, command.wanted
    low = refused_level(state, FEATURE_LEVEL_STREAMS, _PURPOSE)
    if low is not None:
        return low
    if present is None:
        return UnknownStreamError(f"no stream is named {expected.name!r}", stream=expected.name)
    if present.uuid != expected.uuid:
        return StreamRecreatedError(
            f"stream {expected.name!r} was deleted and created again meanwhile",
            expected=expected.uuid,
            found=present.uuid,
        )
    if present not in (expected, wanted):
        return StreamChangedError(
            f"stream {expected.name!r} was changed meanwhile: read it again, then retry",
            stream=expected.name,
        )
    added = len(wanted.data_keys) - len(expected.data_keys)
    same = replace(wanted, data_keys=expected.data_keys) == expected
    if not same or added != 1 or not expected.is_encrypted:
        return InvalidRequestError("RotateDataKey must add one data key and change nothing else")
    return None
