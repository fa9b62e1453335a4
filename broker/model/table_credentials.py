"""Temporary credentials with which somebody reads a stream's tables in the object store."""

from __future__ import annotations

from dataclasses import dataclass

from broker.model.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporaryKeys:
    """A key pair of the object store that ends by itself."""

    access_key_id: str
    secret_access_key: Secret
    session_token: Secret
    expires_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePlace:
    """How the brokers reach the object store; None: as the store's own tools do."""

    endpoint: str | None
    region: str | None
    path_style: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCredentials:
    """Keys that read these tables and nothing else."""

    tables: tuple[str, ...]  # their URIs: the stream's history, and its key snapshot if it has one
    keys: TemporaryKeys
    place: StorePlace
