"""Which partition of a stream a record goes to: one rule for every producer.

Under ``crc32`` a record with a key goes to the CRC-32 (IEEE, that of zlib) of the key modulo the
number of partitions, so equal keys share a partition and keep their order. Records without a key
go to the partitions in turn, batch by batch. Under ``each_client`` the producers choose: streams
of release 0.1 have this value, because the producers of that release had three different rules.
"""

from __future__ import annotations

import zlib
from typing import Literal, TypeAlias

Partitioner: TypeAlias = Literal["crc32", "each_client"]


def partition_of_key(key: bytes, partitions_count: int) -> int:
    """Return the partition, from 0, of every record with this key under ``crc32``."""
    return zlib.crc32(key) % partitions_count
