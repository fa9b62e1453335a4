"""moto's S3 as a process of its own on the loopback, and locations in it for tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from headwater.local.embedded import moto_environment, start_moto
from tiering.store.location import StoreConfig

BUCKET = "headwater-tests"


@contextmanager
def moto_location(folder: Path) -> Iterator[StoreConfig]:
    """Start moto, yield the location of its one bucket, end moto."""
    with start_moto(folder, bucket=BUCKET) as moto:
        yield StoreConfig.from_env(f"s3://{BUCKET}", moto_environment(moto.address))


def fresh(location: StoreConfig) -> StoreConfig:
    """Return an unused prefix in the same bucket.

    Its limits are above what a busy machine takes: a request that is sent again is counted by tests
    that count requests.
    """
    return replace(
        location.child(uuid.uuid4().hex),
        connect_timeout_s=20.0,
        read_timeout_s=60.0,
        attempts_max=3,
        upload_deadline_s=120.0,
    )
