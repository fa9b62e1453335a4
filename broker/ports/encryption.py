"""The interface of key providers: they encrypt a stream's data keys, and never see a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class KeyProvider(Protocol):
    """Wraps data keys with keys of its own, which never leave it. Any thread; calls may block.

    ``context`` says what a data key is for. It is authenticated with the wrapped key, so that a key
    of one stream is not accepted for another; it is not secret.
    """

    @property
    def kind(self) -> str:
        """The kind of provider: ``file``, ``environment`` or ``aws-kms``."""

    def wrap(self, key: bytes, context: Mapping[str, str], *, by: str = "") -> tuple[str, bytes]:
        """Return the name of the key that wrapped a data key, and the wrapped data key.

        It is the key that is named by ``by``, else the one that wraps new data keys.

        Raises:
            EncryptionKeyError: there is no such key, or it cannot be used.
            KeyProviderUnavailableError: the provider does not answer now.
        """

    def unwrap(self, name: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """Return a data key that the key ``name`` has wrapped.

        Raises:
            EncryptionKeyError: there is no key of this name, or it is another key, or the wrapped
                key or its context was changed.
            KeyProviderUnavailableError: the provider does not answer now.
        """
