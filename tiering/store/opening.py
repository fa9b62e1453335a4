"""Opens the store of a location: the one place that knows every adapter."""

from __future__ import annotations

from broker.errors import InvalidConfigError
from tiering.store.location import StoreConfig
from tiering.store.object_store import ErasableStore, ObjectStore


def open_store(config: StoreConfig) -> ErasableStore:
    """Return the adapter for a location; makes no request.

    The adapters are imported here, so that a local lake needs no S3 client.
    """
    if config.kind == "local":
        from tiering.store.local_store import LocalStore  # noqa: PLC0415

        return LocalStore(config)
    from tiering.store.s3 import S3Store  # noqa: PLC0415

    return S3Store(config)


def open_for_reading(config: StoreConfig) -> ObjectStore:
    """Return the adapter for a location that is only read; makes no request.

    It is that of :func:`open_store` where boto3 has to look for credentials or the region, where an
    endpoint has buckets in its host name, and where obstore is not installed.
    """
    given = config.credentials is not None or config.vended is not None
    found_by_boto3 = not given or config.region is None
    other_hosts = config.endpoint is not None and not config.path_style
    if config.kind == "local" or found_by_boto3 or other_hosts:
        return open_store(config)
    try:
        from tiering.store.s3_reads import S3Reads  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        return open_store(config)
    return S3Reads(config)


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
