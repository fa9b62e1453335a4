"""Mistakes of encrypted streams; lives whose brokers lack keys now and then, and rotate them."""

from __future__ import annotations

from typing import Any, Final

from broker.codec.sealed_body import seal
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.runtime import stream_keys
from broker.runtime.partition.retry_tables import RetryTables
from broker.runtime.stream_keys import PartitionCipher, StreamKeys
from simkit.replacing import Mutant, replaced, together


def a_group_is_sealed_for_its_first_offset() -> Any:
    """Bind every batch of a group to the place of the first one."""
    first: list[int] = []

    def sealed(
        self: PartitionCipher, batches: Any, start: Offset, leader_epoch: LeaderEpoch
    ) -> Any:
        first[:] = [start]
        return original(self, batches, start, leader_epoch)

    def at_the_first(batch: Any, aead: Any, version: int, **place: Any) -> Any:
        return seal(batch, aead, version, **{**place, "base_offset": first[0]})

    original = PartitionCipher.sealed
    return together(
        replaced(PartitionCipher, "sealed", sealed), replaced(stream_keys, "seal", at_the_first)
    )


def old_keys_are_forgotten() -> Any:
    """Read with the newest data key whatever a batch was written with."""
    cipher = StreamKeys.cipher

    def newest(self: StreamKeys, stream: Stream, _version: int) -> Any:
        return cipher(self, stream, stream.data_keys[-1].version)

    return replaced(StreamKeys, "cipher", newest)


def encrypted_message_ids_are_not_read() -> Any:
    """Begin to lead without the ids of encrypted records, so that a retry is stored again."""
    read_ids = RetryTables.read_ids

    def without(self: RetryTables, _opened: Any, *, slice_bytes: int) -> None:
        read_ids(self, lambda _: [], slice_bytes=slice_bytes)

    return replaced(RetryTables, "read_ids", without)


MUTANTS: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
        a_group_is_sealed_for_its_first_offset,
        old_keys_are_forgotten,
        encrypted_message_ids_are_not_read,
    )
}
