from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Fencing(_message.Message):
    __slots__ = ("sender", "receiver", "streamUuid", "brokerEpoch", "leaderEpoch", "requestId", "lastEpoch", "syncedEnd", "waitMs", "epoch", "knownEpoch", "refusal", "partition", "kind")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    STREAMUUID_FIELD_NUMBER: _ClassVar[int]
    BROKEREPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    REQUESTID_FIELD_NUMBER: _ClassVar[int]
    LASTEPOCH_FIELD_NUMBER: _ClassVar[int]
    SYNCEDEND_FIELD_NUMBER: _ClassVar[int]
    WAITMS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KNOWNEPOCH_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    sender: str
    receiver: str
    streamUuid: bytes
    brokerEpoch: int
    leaderEpoch: int
    requestId: int
    lastEpoch: int
    syncedEnd: int
    waitMs: int
    epoch: int
    knownEpoch: int
    refusal: int
    partition: int
    kind: int
    def __init__(self, sender: _Optional[str] = ..., receiver: _Optional[str] = ..., streamUuid: _Optional[bytes] = ..., brokerEpoch: _Optional[int] = ..., leaderEpoch: _Optional[int] = ..., requestId: _Optional[int] = ..., lastEpoch: _Optional[int] = ..., syncedEnd: _Optional[int] = ..., waitMs: _Optional[int] = ..., epoch: _Optional[int] = ..., knownEpoch: _Optional[int] = ..., refusal: _Optional[int] = ..., partition: _Optional[int] = ..., kind: _Optional[int] = ...) -> None: ...

class ReplicationRequest(_message.Message):
    __slots__ = ("replicaID", "offset", "leaderEpoch", "fencing")
    REPLICAID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    FENCING_FIELD_NUMBER: _ClassVar[int]
    replicaID: str
    offset: int
    leaderEpoch: int
    fencing: Fencing
    def __init__(self, replicaID: _Optional[str] = ..., offset: _Optional[int] = ..., leaderEpoch: _Optional[int] = ..., fencing: _Optional[_Union[Fencing, _Mapping]] = ...) -> None: ...

class LeaderEpochOffsetRequest(_message.Message):
    __slots__ = ("leaderEpoch", "fencing")
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    FENCING_FIELD_NUMBER: _ClassVar[int]
    leaderEpoch: int
    fencing: Fencing
    def __init__(self, leaderEpoch: _Optional[int] = ..., fencing: _Optional[_Union[Fencing, _Mapping]] = ...) -> None: ...

class LeaderEpochOffsetResponse(_message.Message):
    __slots__ = ("endOffset", "fencing")
    ENDOFFSET_FIELD_NUMBER: _ClassVar[int]
    FENCING_FIELD_NUMBER: _ClassVar[int]
    endOffset: int
    fencing: Fencing
    def __init__(self, endOffset: _Optional[int] = ..., fencing: _Optional[_Union[Fencing, _Mapping]] = ...) -> None: ...

class PartitionNotification(_message.Message):
    __slots__ = ("stream", "partition", "fencing")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FENCING_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    fencing: Fencing
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., fencing: _Optional[_Union[Fencing, _Mapping]] = ...) -> None: ...
