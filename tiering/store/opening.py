"""Opens the store of a location: the one place that knows every adapter."""

from __future__ import annotations

from broker.errors import InvalidConfigError
from tiering.store.location import StoreConfig
from tiering.store.object_store import ErasableStore


def open_store(config: StoreConfig) -> ErasableStore:
    """Return the adapter for a location; makes no request.

    The adapters are imported here, so that a local lake needs no S3 client.
    """
    if config.kind == "local":
        from tiering.store.local_store import LocalStore  # noqa: PLC0415

        return LocalStore(config)
    from tiering.store.s3 import S3Store  # noqa: PLC0415

    return S3Store(config)


def refuse_without_credentials(config: StoreConfig) -> None:
    """Refuse a store that will refuse every request; asks no store.

    Raises:
        InvalidConfigError: S3, and neither the environment nor a profile has credentials.
    """
    if config.kind == "local":
        return
    from tiering.store.s3 import NO_CREDENTIALS, resolve_credentials  # noqa: PLC0415

    if resolve_credentials(config)[0] is None:
        raise InvalidConfigError(NO_CREDENTIALS)
