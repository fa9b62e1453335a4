"""What gRPC's server reflection tells, read as a tool reads it."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from broker.adapters.liftbridge.reflection import REQUESTS_MAX, Reflection, answer
from broker.adapters.liftbridge.statuses import Code, StatusError
from broker.wire.liftbridge.reflection_pb2 import (
    ExtensionRequest,
    ReflectionRequest,
    ReflectionResponse,
)


def ask(request: ReflectionRequest) -> ReflectionResponse:
    """Return the answer to a request."""
    found = ReflectionResponse.FromString(answer(request.SerializeToString()))
    assert found.originalRequest == request
    return found


@pytest.mark.parametrize(
    ("service", "methods_count"), [("proto.API", 16), ("grpc.health.v1.Health", 1)]
)
def test_each_service_that_is_listed_is_described_with_all_that_it_needs(
    service: str, methods_count: int
) -> None:
    """A tool builds the service from the files of one answer."""
    listed = ask(ReflectionRequest(listServices="*"))
    assert service in [one.name for one in listed.services.service]
    told = ask(ReflectionRequest(fileContainingSymbol=service)).fileDescriptors
    files = [descriptor_pb2.FileDescriptorProto.FromString(one) for one in told.fileDescriptorProto]
    pool = descriptor_pool.DescriptorPool()
    for file in reversed(files):
        pool.Add(file)
    found = pool.FindServiceByName(service)
    assert len(found.methods) == methods_count
    assert all(one.input_type.full_name for one in found.methods)
    named = ask(ReflectionRequest(fileByFilename=files[0].name)).fileDescriptors
    assert named == told


def test_methods_and_messages_are_symbols_too() -> None:
    """A tool asks for each by its name."""
    service = ask(ReflectionRequest(fileContainingSymbol="proto.API")).fileDescriptors
    for name in ("proto.API.Subscribe", "proto.SubscribeRequest", "proto.PublishAsyncError.Code"):
        assert ask(ReflectionRequest(fileContainingSymbol=name)).fileDescriptors == service


def test_what_is_not_there_is_an_error_in_the_answer() -> None:
    """The call goes on; nothing of this process that is not served is told."""
    for request in (
        ReflectionRequest(fileContainingSymbol="proto.Nothing"),
        ReflectionRequest(fileContainingSymbol="protocol.Fencing"),
        ReflectionRequest(fileByFilename="google/protobuf/descriptor.proto"),
        ReflectionRequest(allExtensionNumbersOfType="proto.Nothing"),
        ReflectionRequest(fileContainingExtension=ExtensionRequest(containingType="proto.Ack")),
    ):
        assert ask(request).error.errorCode == Code.NOT_FOUND, request
    numbers = ask(ReflectionRequest(allExtensionNumbersOfType="proto.Ack")).extensionNumbers
    assert numbers.baseTypeName == "proto.Ack"
    assert not numbers.extensionNumber
    assert ask(ReflectionRequest()).error.errorCode == Code.INVALID_ARGUMENT


def test_a_call_has_a_bounded_number_of_answers() -> None:
    """Each is far larger than its request."""
    call = Reflection()
    request = ReflectionRequest(fileContainingSymbol="proto.API").SerializeToString()
    assert call.answers([request] * REQUESTS_MAX)
    with pytest.raises(StatusError) as refused:
        call.answers([request])
    assert refused.value.status.code is Code.RESOURCE_EXHAUSTED
