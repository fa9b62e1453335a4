"""Bytes of a configuration: the voters on the metadata. The payload of an entry of kind VOTERS.

    voters | ver u8, count u8 | voter* |
    voter  | disk u64 | length u8 | node id ... |           little-endian

Sorted by node id, each once, so that equal configurations are equal bytes.
"""

from __future__ import annotations

import itertools
import struct
from typing import Final

from broker.errors import MetadataCorruptError
from broker.model.raft import DISK_MAX, NODE_ID_BYTES_MAX, VOTERS_MAX, NodeId, Voter, Voters

VERSION: Final = 1
_HEAD: Final = struct.Struct("<BB")
_VOTER: Final = struct.Struct("<QB")
VOTERS_BYTES_MAX: Final = _HEAD.size + VOTERS_MAX * (_VOTER.size + NODE_ID_BYTES_MAX)


def encode_voters(voters: Voters) -> bytes:
    """Return the bytes of a configuration."""
    parts = [_HEAD.pack(VERSION, len(voters))]
    for one in sorted(voters, key=lambda voter: voter.node.encode()):
        name = one.node.encode()
        parts += (_VOTER.pack(one.disk, len(name)), name)
    return b"".join(parts)


def decode_voters(data: bytes) -> Voters:
    """Parse a configuration. Raises MetadataCorruptError, nothing else."""
    try:
        version, count = _HEAD.unpack_from(data)
        if version != VERSION or not 1 <= count <= VOTERS_MAX:
            raise MetadataCorruptError(
                f"not a list of Raft voters of version {VERSION}: {data[:8].hex()}"
            )
        at = _HEAD.size
        found = []
        for _ in range(count):
            disk, length = _VOTER.unpack_from(data, at)
            at += _VOTER.size + length
            name = data[at - length : at].decode()
            if not 1 <= length <= NODE_ID_BYTES_MAX or at > len(data) or disk > DISK_MAX:
                raise MetadataCorruptError("a list of Raft voters is out of bounds")
            found.append(Voter(NodeId(name), disk))
    except (struct.error, UnicodeDecodeError) as cause:
        raise MetadataCorruptError(f"a list of Raft voters is damaged: {cause}") from cause
    if at != len(data) or any(
        one.node.encode() >= after.node.encode() for one, after in itertools.pairwise(found)
    ):
        raise MetadataCorruptError("a list of Raft voters is not in order")
    return tuple(found)
