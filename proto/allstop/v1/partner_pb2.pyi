from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KeepPiece(_message.Message):
    __slots__ = ("ring", "name", "size_bytes", "data")
    RING_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ring: str
    name: str
    size_bytes: int
    data: bytes
    def __init__(self, ring: _Optional[str] = ..., name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Kept(_message.Message):
    __slots__ = ("made", "same", "free_bytes")
    MADE_FIELD_NUMBER: _ClassVar[int]
    SAME_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    made: bool
    same: bool
    free_bytes: int
    def __init__(self, made: _Optional[bool] = ..., same: _Optional[bool] = ..., free_bytes: _Optional[int] = ...) -> None: ...

class ReadPart(_message.Message):
    __slots__ = ("ring", "name", "start", "to_end", "length")
    RING_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TO_END_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    ring: str
    name: str
    start: int
    to_end: bool
    length: int
    def __init__(self, ring: _Optional[str] = ..., name: _Optional[str] = ..., start: _Optional[int] = ..., to_end: _Optional[bool] = ..., length: _Optional[int] = ...) -> None: ...

class ObjectPiece(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ObjectName(_message.Message):
    __slots__ = ("ring", "name")
    RING_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ring: str
    name: str
    def __init__(self, ring: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ObjectSize(_message.Message):
    __slots__ = ("size_bytes",)
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    def __init__(self, size_bytes: _Optional[int] = ...) -> None: ...

class ObjectPrefix(_message.Message):
    __slots__ = ("ring", "prefix")
    RING_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    ring: str
    prefix: str
    def __init__(self, ring: _Optional[str] = ..., prefix: _Optional[str] = ...) -> None: ...

class ObjectPage(_message.Message):
    __slots__ = ("objects",)
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[ListedObject]
    def __init__(self, objects: _Optional[_Iterable[_Union[ListedObject, _Mapping]]] = ...) -> None: ...

class ListedObject(_message.Message):
    __slots__ = ("name", "size_bytes", "modified_unix_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    modified_unix_s: float
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., modified_unix_s: _Optional[float] = ...) -> None: ...

class Removed(_message.Message):
    __slots__ = ("free_bytes",)
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    free_bytes: int
    def __init__(self, free_bytes: _Optional[int] = ...) -> None: ...
