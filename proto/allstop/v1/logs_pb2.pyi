from allstop.v1 import records_pb2 as _records_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogPlace(_message.Message):
    __slots__ = ("worker", "of_rank", "rank", "source", "file", "offset", "lines", "room")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    OF_RANK_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    worker: int
    of_rank: bool
    rank: int
    source: str
    file: str
    offset: int
    lines: int
    room: int
    def __init__(self, worker: _Optional[int] = ..., of_rank: _Optional[bool] = ..., rank: _Optional[int] = ..., source: _Optional[str] = ..., file: _Optional[str] = ..., offset: _Optional[int] = ..., lines: _Optional[int] = ..., room: _Optional[int] = ...) -> None: ...

class LogPart(_message.Message):
    __slots__ = ("worker", "source", "file", "data", "next", "more", "note", "failure", "node")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    worker: int
    source: str
    file: str
    data: bytes
    next: int
    more: bool
    note: str
    failure: _records_pb2.Failure
    node: str
    def __init__(self, worker: _Optional[int] = ..., source: _Optional[str] = ..., file: _Optional[str] = ..., data: _Optional[bytes] = ..., next: _Optional[int] = ..., more: _Optional[bool] = ..., note: _Optional[str] = ..., failure: _Optional[_Union[_records_pb2.Failure, _Mapping]] = ..., node: _Optional[str] = ...) -> None: ...
