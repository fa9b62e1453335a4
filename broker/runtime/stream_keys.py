"""The data keys of the encrypted streams on this broker, in memory, and the ciphers that use them.

A data key is random, belongs to one stream, and is known in plain to the brokers only; the metadata
has it wrapped. A key that could not be unwrapped is tried again after a few seconds, so that many
partitions do not all wait for a provider that does not answer.
"""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Callable, Sequence

from broker.codec.record_batch import PreparedBatch
from broker.codec.sealed_body import Aead, seal, unseal
from broker.errors import EncryptionKeyError
from broker.model.data_key import DATA_KEY_BYTES, DataKey, next_version
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports.encryption import KeyProvider
from broker.ports.partition import StoredBatch
from broker.ports.system import Clock

_RETRY_MS = 5_000

NewAead = Callable[[bytes], Aead]  # a cipher for batches under a data key
Random = Callable[[int], bytes]


class StreamKeys:
    """Makes, wraps and unwraps data keys. Any thread; calls may block on the provider."""

    def __init__(
        self,
        clock: Clock,
        provider: KeyProvider,
        new_aead: NewAead,
        *,
        random: Random = os.urandom,
    ) -> None:
        """Nothing is asked of ``provider`` before a stream needs a key."""
        self._clock = clock
        self._provider = provider
        self._new_aead = new_aead
        self._random = random
        self._lock = threading.Lock()  # of the two below
        self._ciphers: dict[tuple[StreamUuid, int], Aead] = {}
        self._refused: dict[tuple[StreamUuid, int], tuple[int, EncryptionKeyError]] = {}

    # ------------------------------------------------------------------ new keys

    def first(self, uuid: StreamUuid, *, by: str = "") -> tuple[DataKey, ...]:
        """Return the data keys of a new encrypted stream; see ``KeyProvider.wrap`` for ``by``."""
        return (self._wrapped(uuid, 1, self._random(DATA_KEY_BYTES), by),)

    def rotated(
        self, uuid: StreamUuid, keys: Sequence[DataKey], *, by: str = ""
    ) -> tuple[DataKey, ...]:
        """Return the keys with a new one at the end, all wrapped by ``by``, as in :meth:`first`.

        So no data key needs another key of the provider any more. Raises as ``KeyProvider``.
        """
        again = [self._wrapped(uuid, one.version, self._plain(uuid, one), by) for one in keys]
        new = self._wrapped(uuid, next_version(tuple(keys)), self._random(DATA_KEY_BYTES), by)
        return (*again, new)

    def _wrapped(self, uuid: StreamUuid, version: int, key: bytes, by: str) -> DataKey:
        name, wrapped = self._provider.wrap(key, _context(uuid, version), by=by)
        return DataKey(
            version=version,
            provider=self._provider.kind,
            wrapping_key=name,
            wrapped=base64.b64encode(wrapped).decode(),
            created_us=self._clock.now_us(),
        )

    # ------------------------------------------------------------------ present keys

    def cipher(self, stream: Stream, version: int) -> Aead:
        """Return the cipher of one version of a stream's data key.

        Raises:
            EncryptionKeyError: the key is missing or another one, or no key has this version.
            KeyProviderUnavailableError: the provider does not answer now.
        """
        at = stream.uuid, version
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            known = self._ciphers.get(at)
            retry_ms, refusal = self._refused.get(at, (0, None))
        if known is not None:
            return known
        if refusal is not None and now_ms < retry_ms:
            raise refusal.with_traceback(None)  # else it grows with each caller
        found = next((one for one in stream.data_keys if one.version == version), None)
        if found is None:
            raise EncryptionKeyError(
                f"stream {stream.name!r} has no version {version} of its data key: the metadata is "
                "older than the record, or another cluster wrote it",
                stream=stream.name,
                version=version,
            )
        try:
            made = self._new_aead(self._plain(stream.uuid, found))
        except EncryptionKeyError as error:
            error.facts.update(stream=stream.name, version=version)
            with self._lock:
                self._refused[at] = now_ms + _RETRY_MS, error
            raise
        with self._lock:
            self._refused.pop(at, None)
            return self._ciphers.setdefault(at, made)

    def require(self, stream: Stream) -> None:
        """Check that every data key of the stream can be used; raises as :meth:`cipher` does."""
        for one in stream.data_keys:
            self.cipher(stream, one.version)

    def _plain(self, uuid: StreamUuid, key: DataKey) -> bytes:
        provider = self._provider
        if provider.kind != key.provider:
            raise EncryptionKeyError(
                f"version {key.version} of the data key is wrapped by the provider "
                f"{key.provider!r}, and this broker is configured with {provider.kind!r}",
                provider=key.provider,
                wrapping_key=key.wrapping_key,
            )
        plain = provider.unwrap(key.wrapping_key, key.wrapped_bytes, _context(uuid, key.version))
        if len(plain) != DATA_KEY_BYTES:
            raise EncryptionKeyError(
                f"the provider returned a data key of {len(plain)} bytes, not {DATA_KEY_BYTES}",
                provider=key.provider,
                wrapping_key=key.wrapping_key,
            )
        return plain


def require_keys(keys: StreamKeys | None, stream: Stream) -> None:
    """Check that every data key of an encrypted stream can be used on this broker.

    Raises:
        EncryptionKeyError, KeyProviderUnavailableError: see ``StreamKeys.cipher``.
    """
    if keys is None:
        raise no_keys(stream.name)
    keys.require(stream)


def no_keys(name: str) -> EncryptionKeyError:
    """Return the error of a broker without a key provider, about the stream ``name``."""
    return EncryptionKeyError(
        f"stream {name!r} is encrypted, and this broker has no key provider: set "
        "encryption.provider in its configuration (docs/encryption.md)",
        stream=name,
    )


class PartitionCipher:
    """Encrypts what a partition writes, and decrypts what its readers get. Any thread.

    The metadata of the stream says which key is the newest. A partition of a stream that is not
    encrypted returns all batches as they are.
    """

    def __init__(self, stream: Stream, partition_id: PartitionId, keys: StreamKeys | None) -> None:
        """Use ``keys``; None: this broker serves no encrypted stream."""
        self.stream = stream
        self._partition_id = partition_id
        self._keys = keys

    def configure(self, stream: Stream) -> None:
        """Take the stream's new data keys; the newest is used from the next write on."""
        self.stream = stream

    def sealed(
        self, batches: Sequence[PreparedBatch], start: Offset, leader_epoch: LeaderEpoch
    ) -> Sequence[PreparedBatch]:
        """Return a group, whose first offset is ``start``, as it is to be stored.

        Raises:
            EncryptionKeyError, KeyProviderUnavailableError: the newest key cannot be used.
        """
        stream = self.stream
        if not stream.is_encrypted:
            return batches
        version = stream.data_keys[-1].version
        aead = self._cipher(version)
        sealed, offset = list[PreparedBatch](), start
        for batch in batches:
            sealed.append(
                seal(
                    batch,
                    aead,
                    version,
                    partition_id=self._partition_id,
                    base_offset=offset,
                    leader_epoch=leader_epoch,
                )
            )
            offset = Offset(offset + batch.records_count)
        return sealed

    def opened(self, batches: Sequence[StoredBatch]) -> list[StoredBatch]:
        """Return batches of the log with bodies that can be decoded.

        Raises:
            BatchCorruptError: a batch was changed, or was written for another place.
            EncryptionKeyError, KeyProviderUnavailableError: a key cannot be used.
        """
        return [self._opened(one) if one.header.encrypted else one for one in batches]

    def _opened(self, batch: StoredBatch) -> StoredBatch:
        header, body = unseal(
            batch.header, batch.body, self._cipher, partition_id=self._partition_id
        )
        return StoredBatch(header, body)

    def _cipher(self, version: int) -> Aead:
        if self._keys is None:
            raise no_keys(self.stream.name)
        return self._keys.cipher(self.stream, version)


def _context(uuid: StreamUuid, version: int) -> dict[str, str]:
    """Return what a wrapped data key is bound to."""
    return {"headwater:stream": uuid, "headwater:version": str(version)}
