"""gRPC's server reflection: what tools such as grpcurl ask for, to call services without a schema.

The answers are the same for everybody: they describe the services, not what is stored. A request
has one answer; requests about extensions of messages find none, because there are none. Source:
the gRPC project's "Server Reflection Protocol" (grpc.reflection.v1).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FileDescriptor

from broker.adapters.liftbridge.http2 import prefixed
from broker.adapters.liftbridge.statuses import Code, StatusError
from broker.adapters.liftbridge.stream_calls import decode
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2, reflection_pb2

PATHS: Final = frozenset(
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    for version in ("v1", "v1alpha")
)
REQUESTS_MAX: Final = 100  # of one call: an answer is hundreds of times as large as its request
_SERVICES: Final = ("grpc.health.v1.Health", "proto.API")


class Reflection:
    """One call of ServerReflectionInfo: each request has one answer, at once."""

    def __init__(self) -> None:
        self._left = REQUESTS_MAX

    def answers(self, payloads: Sequence[bytes]) -> bytes:
        """Return the answers to requests that came together, each with its prefix.

        Raises:
            StatusError: the bytes are not a request, or the call has had too many.
        """
        self._left -= len(payloads)
        if self._left < 0:
            text = f"more than {REQUESTS_MAX} requests in one call: make another call"
            raise StatusError(Code.RESOURCE_EXHAUSTED, text)
        return b"".join(prefixed(answer(one)) for one in payloads)


def answer(payload: bytes) -> bytes:
    """Answer one request of ServerReflectionInfo.

    Raises:
        StatusError: the bytes are not a request.
    """
    request = decode(reflection_pb2.ReflectionRequest, payload)
    response = reflection_pb2.ReflectionResponse(validHost=request.host, originalRequest=request)
    try:
        match request.WhichOneof("asked"):
            case "listServices":
                for name in _SERVICES:
                    response.services.service.add(name=name)
            case "fileByFilename":
                _describe(response, _pool().FindFileByName(request.fileByFilename))
            case "fileContainingSymbol":
                _describe(response, _file_of(request.fileContainingSymbol))
            case "allExtensionNumbersOfType":
                found = _pool().FindMessageTypeByName(request.allExtensionNumbersOfType)
                response.extensionNumbers.baseTypeName = found.full_name
            case "fileContainingExtension":
                raise KeyError("no message has extensions")
            case _:
                _refuse(response, Code.INVALID_ARGUMENT, "the request asks for nothing")
    except KeyError as missing:
        _refuse(response, Code.NOT_FOUND, str(missing.args[0]))
    return response.SerializeToString()


def _refuse(response: reflection_pb2.ReflectionResponse, code: Code, message: str) -> None:
    response.error.errorCode = code
    response.error.errorMessage = message


def _describe(response: reflection_pb2.ReflectionResponse, file: FileDescriptor) -> None:
    """Add a file and the files that it imports."""
    found, due = {file.name: file}, [file]
    while due:
        for imported in due.pop().dependencies:
            if imported.name not in found:
                found[imported.name] = imported
                due.append(imported)
    response.fileDescriptors.fileDescriptorProto.extend(one.serialized_pb for one in found.values())


def _file_of(symbol: str) -> FileDescriptor:
    """Return the file of a service, a method or a type; raises KeyError."""
    try:
        return _pool().FindFileContainingSymbol(symbol)
    except KeyError:  # the pool knows no methods by their names
        service, _, method = symbol.rpartition(".")
        found = _pool().FindServiceByName(service)
        if method not in found.methods_by_name:
            raise
        return found.file


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    """Return the descriptors of the services, and of nothing else in this process."""
    made = descriptor_pool.DescriptorPool()
    for file in (message_pb2.DESCRIPTOR, api.DESCRIPTOR):  # first what the other imports
        made.AddSerializedFile(file.serialized_pb)
    made.Add(_health())
    return made


def _health() -> descriptor_pb2.FileDescriptorProto:
    """Return the schema of health.py, under the names of grpc.health.v1."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="grpc/health/v1/health.proto", package="grpc.health.v1", syntax="proto3"
    )
    optional = kinds.LABEL_OPTIONAL
    request = file.message_type.add(name="HealthCheckRequest")
    request.field.add(name="service", number=1, type=kinds.TYPE_STRING, label=optional)
    response = file.message_type.add(name="HealthCheckResponse")
    status = ".grpc.health.v1.HealthCheckResponse.ServingStatus"
    response.field.add(
        name="status", number=1, type=kinds.TYPE_ENUM, type_name=status, label=optional
    )
    states = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
        states.value.add(name=name, number=number)
    file.service.add(name="Health").method.add(
        name="Check",
        input_type=".grpc.health.v1.HealthCheckRequest",
        output_type=".grpc.health.v1.HealthCheckResponse",
    )
    return file
