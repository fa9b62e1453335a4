"""What tiering needs of a store of immutable objects, and how one is opened.

Keys are relative to the store's root, with ``/``. An object, once created, never changes: there is
no overwrite, and the port has no delete. Only who made objects that nobody can refer to yet may
take them back, through :class:`ErasableStore`. The contract suite is
tests/contract/test_object_store.py; the adapters are s3.py (boto3) and local_store.py. No client
library's type or error crosses this line.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from broker.codec.checksum import crc32c
from broker.errors import UnfencedStoreError
from tiering.store.location import StoreConfig

PROBE_KEY: Final = "_headwater/conditional_put_probe"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object in the store; what the store does not tell is None."""

    key: str
    size_bytes: int
    crc32c: int | None = None
    etag: str | None = None  # the store's name for these very bytes
    stamp: tuple[int, ...] | None = None  # changes here whenever the bytes are written again


class ObjectStore(Protocol):
    """Immutable objects below one root. Blocking; any thread.

    Every method may raise RemoteTierUnavailableError: nothing is known about the outcome then.
    """

    @property
    def config(self) -> StoreConfig:
        """Where the root is and how it is reached."""

    def put_if_absent(self, key: str, body: Any, *, crc32c: int) -> bool:
        """Create an object durably, unless the key is taken.

        ``body`` is bytes-like, ``crc32c`` its CRC-32C, which the store compares with what it got.
        Returns True when the object under ``key`` now has exactly these bytes (created here, or
        by an earlier attempt whose answer was lost), False when it holds others.
        """

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return all bytes of an object, or exactly those of ``[start, end)``.

        Raises:
            ObjectMissingError: no such object.
            ObjectCorruptError: the object ends before ``end``.
        """

    def head(self, key: str) -> ObjectInfo:
        """Return size and, where the store keeps it, CRC-32C; raises ObjectMissingError."""

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose key begins with ``prefix``, by key, above ``start_after``."""

    def make_durable(self, keys: Sequence[str]) -> None:
        """Sync objects that another library wrote below this root; S3 has nothing to do."""

    def under(self, path: str) -> ObjectStore:
        """Return the same store with its root moved down by ``path``."""


class ErasableStore(ObjectStore, Protocol):
    """A store that gives objects up again; the adapters are such, the broker never asks for it."""

    def erase(self, keys: Sequence[str]) -> None:
        """Delete objects that the caller created and nobody refers to; missing ones are fine."""


def open_store(config: StoreConfig) -> ErasableStore:
    """Return the adapter for a location; makes no request.

    The adapters are imported here, so that a local lake needs no S3 client.
    """
    if config.kind == "local":
        from tiering.store.local_store import LocalStore  # noqa: PLC0415

        return LocalStore(config)
    from tiering.store.s3 import S3Store  # noqa: PLC0415

    return S3Store(config)


def require_conditional_put(store: ObjectStore) -> None:
    """Prove that the store refuses to create an object twice, else refuse the store.

    Two brokers that both believe they lead a partition are told apart by this alone, so a store
    that quietly overwrites is not used unless the operator declares that there is one writer.
    One small object stays behind as the probe's target.

    Raises:
        UnfencedStoreError: the second create was accepted.
        RemoteTierUnavailableError: the store did not answer.
    """
    if store.config.single_writer:
        return
    first = f"headwater probe {secrets.token_hex(16)}\n".encode()
    second = f"headwater probe {secrets.token_hex(16)}\n".encode()
    store.put_if_absent(PROBE_KEY, first, crc32c=crc32c(first))
    accepted = store.put_if_absent(PROBE_KEY, second, crc32c=crc32c(second))
    if accepted or store.get(PROBE_KEY) == second:
        raise UnfencedStoreError(
            f"{store.config.uri} ignores conditional PUT (If-None-Match: *), so two writers could "
            "lose each other's commits. Use a store that has it (AWS S3, MinIO, R2, Ceph, a local "
            "directory), or set single_writer if exactly one broker will ever write to this lake.",
            uri=store.config.uri,
        )
