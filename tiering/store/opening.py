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


def open_for_reading(config: StoreConfig) -> ErasableStore:
    """Return the store of a location for one read by a short command; makes no request.

    The answers are those of :func:`open_store`; where it can be, without boto3's half second.
    """
    if config.kind == "s3":
        from tiering.store.quick_reads import is_plain, open_quick_reads  # noqa: PLC0415

        if is_plain(config):
            return open_quick_reads(config)
    return open_store(config)


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
