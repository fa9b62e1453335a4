"""Liftbridge's option `encryption` (TestDataEncryptionStream, L38), on a real broker and disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from broker.adapters.clock import SystemClock
from broker.adapters.liftbridge.config import LiftbridgeServiceConfig
from broker.adapters.liftbridge.service import LiftbridgeService
from broker.runtime.stream_keys import StreamKeys
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge.api_pb2_grpc import APIStub
from simkit.brokers.brokers import disk_broker
from simkit.encryption_keys import FIRST, SECOND, stream_keys

pytestmark = pytest.mark.integration

SECRET = b"a value that nobody else may read"
WAIT_S = 30.0
CREATE = api.CreateStreamRequest(name="s", subject="foo", encryption=api.NullableBool(value=True))


@contextmanager
def served(folder: Path, keys: StreamKeys | None) -> Iterator[APIStub]:
    """Serve a broker in ``folder`` with these keys; give a client's stub."""
    with disk_broker(folder, keys=keys) as broker:
        service = LiftbridgeService(broker, SystemClock(), LiftbridgeServiceConfig(port=0))
        service.start()
        with grpc.insecure_channel(f"127.0.0.1:{service.port}") as channel:
            yield APIStub(channel)  # type: ignore[no-untyped-call]  # generated
        assert service.close(timeout_ms=10_000)


def test_values_are_plain_for_subscribers_and_not_on_the_disk(tmp_path: Path) -> None:
    """L38: the disk has other bytes than the subscriber gets."""
    with served(tmp_path, stream_keys({"one": FIRST})) as stub:
        stub.CreateStream(CREATE, timeout=WAIT_S)
        for _ in range(3):
            stub.Publish(api.PublishRequest(stream="s", value=SECRET), timeout=WAIT_S)
        call = stub.Subscribe(
            api.SubscribeRequest(
                stream="s",
                startPosition=api.EARLIEST,
                stopPosition=api.STOP_OFFSET,
                stopOffset=2,
            ),
            timeout=WAIT_S,
        )
        found = []
        with pytest.raises(grpc.RpcError) as ended:
            found.extend(call)
        assert ended.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert [one.value for one in found[1:]] == [SECRET] * 3
    disk = b"".join(one.read_bytes() for one in tmp_path.rglob("*") if one.is_file())
    assert SECRET not in disk


def test_without_a_key_the_precondition_fails(tmp_path: Path) -> None:
    """L38: at the creation, and nothing is created."""
    with served(tmp_path, None) as stub:
        with pytest.raises(grpc.RpcError) as refused:
            stub.CreateStream(CREATE, timeout=WAIT_S)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "key provider" in str(refused.value.details())
        metadata = stub.FetchMetadata(api.FetchMetadataRequest(), timeout=WAIT_S)
        assert "s" not in [one.name for one in metadata.streamMetadata]


def test_a_publish_to_a_locked_stream_fails_with_liftbridges_codes(tmp_path: Path) -> None:
    """Publish is Internal, PublishAsync ENCRYPTION_FAILED; with the key again it is stored."""
    message = api.PublishRequest(stream="s", value=SECRET)
    with served(tmp_path, stream_keys({"one": FIRST})) as stub:
        stub.CreateStream(CREATE, timeout=WAIT_S)
    with served(tmp_path, stream_keys({"one": SECOND})) as stub:
        with pytest.raises(grpc.RpcError) as refused:
            stub.Publish(message, timeout=WAIT_S)
        assert refused.value.code() is grpc.StatusCode.INTERNAL
        (told,) = stub.PublishAsync(iter([message]), timeout=WAIT_S)
        assert told.asyncError.code == api.PublishAsyncError.ENCRYPTION_FAILED
    with served(tmp_path, stream_keys({"one": FIRST})) as stub:
        assert stub.Publish(message, timeout=WAIT_S).ack.offset == 0
