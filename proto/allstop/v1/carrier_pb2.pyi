from allstop.v1 import shim_pb2 as _shim_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CarrierMessage(_message.Message):
    __slots__ = ("hello", "said")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SAID_FIELD_NUMBER: _ClassVar[int]
    hello: CarrierHello
    said: _containers.RepeatedCompositeFieldContainer[Said]
    def __init__(self, hello: _Optional[_Union[CarrierHello, _Mapping]] = ..., said: _Optional[_Iterable[_Union[Said, _Mapping]]] = ...) -> None: ...

class CarrierHello(_message.Message):
    __slots__ = ("name", "session")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    session: str
    def __init__(self, name: _Optional[str] = ..., session: _Optional[str] = ...) -> None: ...

class Said(_message.Message):
    __slots__ = ("attachment", "message", "lost")
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    attachment: int
    message: _shim_pb2.ShimMessage
    lost: str
    def __init__(self, attachment: _Optional[int] = ..., message: _Optional[_Union[_shim_pb2.ShimMessage, _Mapping]] = ..., lost: _Optional[str] = ...) -> None: ...

class LeaderMessage(_message.Message):
    __slots__ = ("epoch", "welcome", "deliveries", "dismissals")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    DISMISSALS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    welcome: LeaderWelcome
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    dismissals: _containers.RepeatedCompositeFieldContainer[Dismissal]
    def __init__(self, epoch: _Optional[int] = ..., welcome: _Optional[_Union[LeaderWelcome, _Mapping]] = ..., deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ..., dismissals: _Optional[_Iterable[_Union[Dismissal, _Mapping]]] = ...) -> None: ...

class LeaderWelcome(_message.Message):
    __slots__ = ("coordinator", "report_interval_ms")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    REPORT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    coordinator: str
    report_interval_ms: int
    def __init__(self, coordinator: _Optional[str] = ..., report_interval_ms: _Optional[int] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("message", "attachments", "workers")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    message: _shim_pb2.CoordinatorMessage
    attachments: _containers.RepeatedScalarFieldContainer[int]
    workers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, message: _Optional[_Union[_shim_pb2.CoordinatorMessage, _Mapping]] = ..., attachments: _Optional[_Iterable[int]] = ..., workers: _Optional[_Iterable[int]] = ...) -> None: ...

class Dismissal(_message.Message):
    __slots__ = ("attachment", "error")
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    attachment: int
    error: bytes
    def __init__(self, attachment: _Optional[int] = ..., error: _Optional[bytes] = ...) -> None: ...
