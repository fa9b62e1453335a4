"""The metadata state machine for Raft: bytes in, bytes out, no exceptions.

A refusal is part of the reply, so a retried command gets the same refusal. A command that does not
parse is refused as well: every node has it in its log, and no node may fail on it.
"""

from __future__ import annotations

import json
from typing import Final

from broker.codec.disk.raft_state import REPLY_BYTES_MAX
from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import decode
from broker.core.metadata.outcome import CommandReply
from broker.core.metadata.snapshot import decode_snapshot, encode_snapshot, state_hash
from broker.core.metadata.state import MetadataState
from broker.errors import HeadwaterError, InvalidRequestError, MetadataCorruptError, from_wire
from broker.errors import to_wire as error_to_wire

# Characters of a refusal's message that are kept if the whole one is too long. JSON takes up to 12
# bytes for a character. The first number stays as it is: every build has to give the same reply.
_MESSAGE_LENGTHS: Final = (300, 150)


class MetadataMachine:
    """Implements ``StateMachine``. Owner: the Raft pump; ``state`` may be read anywhere."""

    def __init__(self) -> None:
        self.state = MetadataState()
        self._index = 0

    def apply(self, index: int, command: bytes) -> bytes:
        """Apply a command, return its reply or its refusal."""
        self._index = index
        try:
            parsed = decode(command)
        except HeadwaterError as error:
            return _refusal(InvalidRequestError(f"not a metadata command: {error.message}"))
        self.state, reply = apply(self.state, parsed)
        if isinstance(reply, Rejected):
            return _refusal(reply.error)
        text = json.dumps({"reply": reply}, sort_keys=True, separators=(",", ":")).encode()
        if len(text) > REPLY_BYTES_MAX:
            return _refusal(InvalidRequestError("applied, but the reply is too long to be kept"))
        return text

    def snapshot(self) -> bytes:
        """Return the state as bytes."""
        return encode_snapshot(self.state, self._index)

    def restore(self, data: bytes) -> None:
        """Replace the state by a snapshot's. Raises MetadataCorruptError, FeatureLevelError."""
        self.state, self._index = decode_snapshot(data)

    def hash(self) -> int:
        """Return 64 bits that are equal on every node that applied the same log."""
        return int.from_bytes(state_hash(self.state)[:8], "little")


def read_reply(data: bytes) -> CommandReply:
    """Return a reply, or raise the refusal that the bytes hold."""
    body = json.loads(data)
    if "error" in body:
        error = from_wire(data.decode())
        raise error if error is not None else MetadataCorruptError("a refusal of no known kind")
    reply: CommandReply = body["reply"]
    return reply


def _refusal(error: HeadwaterError) -> bytes:
    data = error_to_wire(error).encode()
    for length in _MESSAGE_LENGTHS:
        if len(data) <= REPLY_BYTES_MAX:
            break
        data = error_to_wire(type(error)(error.message[:length])).encode()
    return data
