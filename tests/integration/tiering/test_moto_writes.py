"""The S3 of tests and of the demo: of several conditional writes at once, one wins."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from headwater.local import embedded

pytestmark = pytest.mark.integration

BUCKET, KEY = "lake", "00000001.json"
AT_ONCE = 4
# The server, with writes that wait for each other between the check of the condition and the write,
# which is where a thread may be interrupted. A single write goes on after a while: soon
# with the lock, where writes are single; without it only on an extremely slow machine.
PROGRAM = """
import sys, threading
from moto.s3.models import S3Backend
from moto.server import main
from headwater.local.moto_server import serialize_writes

both = threading.Barrier(2)
serialized = sys.argv.pop(1) == "serialized"
alone_s = 0.2 if serialized else 30
one_writes = threading.Lock()

def meet(write):
    def meeting(*args, **options):
        try:
            both.wait(alone_s)
        except threading.BrokenBarrierError:
            both.reset()
        with one_writes:  # moto may answer 500 to writes that meet inside
            return write(*args, **options)
    return meeting

for name in ("put_object", "delete_object", "complete_multipart_upload"):
    setattr(S3Backend, name, meet(getattr(S3Backend, name)))
if serialized:
    serialize_writes()
main()
"""


@contextmanager
def slow_moto(folder: Path, how: str) -> Iterator[str]:
    """Start a server that gives races time; yields its address."""
    port = embedded.free_port()
    log = folder / "moto.log"
    process = embedded.spawn([sys.executable, "-c", PROGRAM, how, "--port", str(port)], log)
    address = f"http://{embedded.LOOPBACK}:{port}"
    with embedded.EmbeddedServer("moto", address, port, log, process) as server:
        embedded.wait_ready(server, lambda: embedded.http_status(port, "GET", "/moto-api/") == 200)
        embedded.wait_ready(server, lambda: embedded.http_status(port, "PUT", f"/{BUCKET}") == 200)
        yield address


def statuses(address: str, writers: int = AT_ONCE, **condition: str) -> list[int]:
    """Write one key from several threads at once; return the answers, sorted."""
    started = threading.Barrier(writers)
    clients = [client_of(address) for _ in range(writers)]

    def write(number: int) -> int:
        started.wait()
        body = b"%d %s" % (number, repr(condition).encode())  # another ETag for each
        try:
            clients[number].put_object(Bucket=BUCKET, Key=KEY, Body=body, **condition)
        except ClientError as error:
            status: int = error.response["ResponseMetadata"]["HTTPStatusCode"]
            return status
        return 200

    with ThreadPoolExecutor(writers) as pool:
        return sorted(pool.map(write, range(writers)))


def client_of(address: str) -> Any:
    """Return a client that does not try again."""
    return boto3.client(
        "s3",
        endpoint_url=address,
        region_name=embedded.MOTO_REGION,
        aws_access_key_id=embedded.MOTO_ACCESS_KEY,
        aws_secret_access_key=embedded.MOTO_ACCESS_KEY,
        config=Config(retries={"total_max_attempts": 1}),
    )


def test_one_of_several_conditional_writes_wins(tmp_path: Path) -> None:
    """A key that must not be there, and a key that must not have changed."""
    with slow_moto(tmp_path, "serialized") as address:
        assert statuses(address, IfNoneMatch="*") == [200, 412, 412, 412]
        etag = client_of(address).head_object(Bucket=BUCKET, Key=KEY)["ETag"]
        assert statuses(address, IfMatch=etag) == [200, 412, 412, 412]


def test_moto_without_our_lock_lets_two_win(tmp_path: Path) -> None:
    """The reason for the lock. If this test fails with a newer moto, the lock may be removed."""
    with slow_moto(tmp_path, "as it is") as address:
        both = statuses(address, 2, IfNoneMatch="*")
    assert 412 not in both  # 500: the key's former bytes were closed under moto's hands
