from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReflectionRequest(_message.Message):
    __slots__ = ("host", "fileByFilename", "fileContainingSymbol", "fileContainingExtension", "allExtensionNumbersOfType", "listServices")
    HOST_FIELD_NUMBER: _ClassVar[int]
    FILEBYFILENAME_FIELD_NUMBER: _ClassVar[int]
    FILECONTAININGSYMBOL_FIELD_NUMBER: _ClassVar[int]
    FILECONTAININGEXTENSION_FIELD_NUMBER: _ClassVar[int]
    ALLEXTENSIONNUMBERSOFTYPE_FIELD_NUMBER: _ClassVar[int]
    LISTSERVICES_FIELD_NUMBER: _ClassVar[int]
    host: str
    fileByFilename: str
    fileContainingSymbol: str
    fileContainingExtension: ExtensionRequest
    allExtensionNumbersOfType: str
    listServices: str
    def __init__(self, host: _Optional[str] = ..., fileByFilename: _Optional[str] = ..., fileContainingSymbol: _Optional[str] = ..., fileContainingExtension: _Optional[_Union[ExtensionRequest, _Mapping]] = ..., allExtensionNumbersOfType: _Optional[str] = ..., listServices: _Optional[str] = ...) -> None: ...

class ExtensionRequest(_message.Message):
    __slots__ = ("containingType", "extensionNumber")
    CONTAININGTYPE_FIELD_NUMBER: _ClassVar[int]
    EXTENSIONNUMBER_FIELD_NUMBER: _ClassVar[int]
    containingType: str
    extensionNumber: int
    def __init__(self, containingType: _Optional[str] = ..., extensionNumber: _Optional[int] = ...) -> None: ...

class ReflectionResponse(_message.Message):
    __slots__ = ("validHost", "originalRequest", "fileDescriptors", "extensionNumbers", "services", "error")
    VALIDHOST_FIELD_NUMBER: _ClassVar[int]
    ORIGINALREQUEST_FIELD_NUMBER: _ClassVar[int]
    FILEDESCRIPTORS_FIELD_NUMBER: _ClassVar[int]
    EXTENSIONNUMBERS_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    validHost: str
    originalRequest: ReflectionRequest
    fileDescriptors: FileDescriptors
    extensionNumbers: ExtensionNumbers
    services: Services
    error: ReflectionError
    def __init__(self, validHost: _Optional[str] = ..., originalRequest: _Optional[_Union[ReflectionRequest, _Mapping]] = ..., fileDescriptors: _Optional[_Union[FileDescriptors, _Mapping]] = ..., extensionNumbers: _Optional[_Union[ExtensionNumbers, _Mapping]] = ..., services: _Optional[_Union[Services, _Mapping]] = ..., error: _Optional[_Union[ReflectionError, _Mapping]] = ...) -> None: ...

class FileDescriptors(_message.Message):
    __slots__ = ("fileDescriptorProto",)
    FILEDESCRIPTORPROTO_FIELD_NUMBER: _ClassVar[int]
    fileDescriptorProto: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, fileDescriptorProto: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ExtensionNumbers(_message.Message):
    __slots__ = ("baseTypeName", "extensionNumber")
    BASETYPENAME_FIELD_NUMBER: _ClassVar[int]
    EXTENSIONNUMBER_FIELD_NUMBER: _ClassVar[int]
    baseTypeName: str
    extensionNumber: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, baseTypeName: _Optional[str] = ..., extensionNumber: _Optional[_Iterable[int]] = ...) -> None: ...

class Services(_message.Message):
    __slots__ = ("service",)
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    service: _containers.RepeatedCompositeFieldContainer[ServiceName]
    def __init__(self, service: _Optional[_Iterable[_Union[ServiceName, _Mapping]]] = ...) -> None: ...

class ServiceName(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ReflectionError(_message.Message):
    __slots__ = ("errorCode", "errorMessage")
    ERRORCODE_FIELD_NUMBER: _ClassVar[int]
    ERRORMESSAGE_FIELD_NUMBER: _ClassVar[int]
    errorCode: int
    errorMessage: str
    def __init__(self, errorCode: _Optional[int] = ..., errorMessage: _Optional[str] = ...) -> None: ...
