"""Object storage (S3, Google, Azure, or memory) through `obstore`, behind the port of objects.

An object is one request: whole or not there, so nothing half-written is ever left. What is written
once is created conditionally (`If-None-Match: *`); a store that does not honour that is refused by
`allstop doctor`. Each object carries a word of whoever wrote it, so that a writer whose answer was
lost can look whether the object that is there is its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError

from coordinator.core.errors import BadRequest, DriverError
from worker_shim.images.objects.address import Address, client_settings
from worker_shim.images.objects.cloud_errors import mapped, mapping, status_of
from worker_shim.images.objects.names import checked_object
from worker_shim.images.objects.port import Listed, ObjectMissing, Part

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Remote

IDENTITY = "store.id"
WRITER = "allstopwriter"  # name of the object's attribute; letters alone suit every store
UNLIMITED_BYTES = 1 << 62


@dataclass(frozen=True)
class Limits:
    """How long one call may take: no longer than `retry_s` + `request_s`, times two for `put`."""

    connect_s: float = 5.0
    request_s: float = 60.0  # one request with its body: 32 MiB want half a megabyte a second
    retry_s: float = 60.0
    retries: int = 5


class CloudStore:
    """Objects below `scheme://bucket/prefix`; endpoint and credentials come from the environment.

    A crash leaves nothing half-written. Any number of nodes may use one store at the same time.
    """

    def __init__(self, where: str, limits: Limits = Limits()) -> None:
        """Connect, and read the store's identity or make it.

        Raises BadRequest for an address that makes no sense, DriverError where the store is out
        of reach, refuses us, or has no such bucket.
        """
        self._address = Address.parse(where)
        self._where = str(self._address)
        self._remote = _remote(self._address, limits)
        self._identity = self._agree_on_identity()

    @property
    def identity(self) -> str:
        """The random id that the first who opened this store wrote."""
        return self._identity

    @property
    def scheme(self) -> str:
        """s3, gs, az or memory."""
        return self._address.scheme

    def put(self, name: str, parts: Sequence[Part]) -> bool:
        """Create an object in one request; False: there was one."""
        checked_object(name)
        body, writer = b"".join(parts), secrets.token_hex(8)
        try:
            with mapping(self._where, name, writing=True):
                return self._create(name, body, writer)
        except DriverError as error:
            if error.definite or self._writer(name) != writer:
                raise
            return True  # the answer was lost, the object was not

    def _create(self, name: str, body: bytes, writer: str) -> bool:
        try:
            obstore.put(
                self._remote,
                name,
                body,
                attributes={WRITER: writer},
                mode="create",
                use_multipart=False,
            )
        except AlreadyExistsError:
            return self._writer(name) == writer  # ours: of a try whose answer was lost
        return True

    def _writer(self, name: str) -> str:
        """Who wrote the object that is there; '' where that cannot be told."""
        try:
            found = obstore.get(self._remote, name, options={"head": True})
            return str(found.attributes.get(WRITER, ""))
        except Exception:
            return ""

    def get(self, name: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Read an object or a part of it; what lies beyond its end is left out."""
        if length == 0:
            self.size(name)
            return b""
        options: Any = {}
        if length is not None:
            options = {"range": (start, start + length)}
        elif start:
            options = {"range": {"offset": start}}
        try:
            with mapping(self._where, name):
                try:
                    return obstore.get(self._remote, name, options=options).bytes().to_bytes()
                except Exception as error:
                    if not options or not _beyond(error):
                        raise
        except ObjectMissing:
            raise
        if start < self.size(name):
            raise DriverError(f"{self._where} does not give a part of {name}")
        return b""

    def size(self, name: str) -> int:
        """Size in bytes; raises ObjectMissing."""
        with mapping(self._where, name):
            return int(obstore.head(self._remote, name)["size"])

    def list(self, prefix: str) -> Iterator[Listed]:
        """Every object whose name begins with `prefix`.

        The library lists folders: that of the prefix is asked for, and the rest left out here.
        """
        folder = prefix.rpartition("/")[0]
        pages = iter(obstore.list(self._remote, prefix=folder or None))
        while True:
            with mapping(self._where, prefix):
                page = next(pages, None)
            if page is None:
                return
            for found in page:
                if found["path"].startswith(prefix):
                    yield Listed(
                        found["path"], int(found["size"]), found["last_modified"].timestamp()
                    )

    def delete(self, name: str) -> None:
        """Remove an object; no error when it is gone."""
        try:
            with mapping(self._where, name, writing=True):
                obstore.delete(self._remote, name)
        except ObjectMissing:
            pass

    def free_bytes(self) -> int:
        """Object storage tells no limit."""
        return UNLIMITED_BYTES

    def sweep(self) -> tuple[str, ...]:
        """Nothing: an object is one request."""
        return ()

    def close(self) -> None:
        """Nothing to let go of: connections are of the process."""

    def _agree_on_identity(self) -> str:
        for _ in range(2):
            try:
                return self.get(IDENTITY).decode("ascii")
            except ObjectMissing:
                self.put(IDENTITY, [secrets.token_hex(16).encode()])
            except UnicodeDecodeError:
                break
        raise DriverError(
            f"{self._where}/{IDENTITY} cannot be made or read",
            advice="is the prefix used by something else?",
        )


def _beyond(error: Exception) -> bool:
    """Whether a part was asked for that begins at or after the object's end."""
    return status_of(error) == 416 or "Invalid range" in str(error)


_memories: dict[str, Any] = {}
_making = Lock()


def _remote(address: Address, limits: Limits) -> Remote:
    """The library's store; nothing is asked of the network here."""
    from obstore import store as kinds

    client = client_settings(address.scheme)
    client |= {
        "connect_timeout": timedelta(seconds=limits.connect_s),
        "timeout": timedelta(seconds=limits.request_s),
    }
    retry: Any = {
        "max_retries": limits.retries,
        "retry_timeout": timedelta(seconds=limits.retry_s),
        "backoff": {
            "init_backoff": timedelta(seconds=0.1),
            "max_backoff": timedelta(seconds=max(0.1, limits.retry_s / 6)),
        },
    }
    common: Any = {
        "prefix": address.prefix or None,
        "client_options": client,
        "retry_config": retry,
    }
    try:
        if address.scheme == "s3":
            return kinds.S3Store(address.bucket, **common)
        if address.scheme == "gs":
            return kinds.GCSStore(address.bucket, **common)
        if address.scheme == "az":
            return kinds.AzureStore(address.bucket, **common)
    except Exception as error:  # whatever the library makes of the environment
        raise BadRequest(
            f"{address} cannot be used: {mapped(error, str(address), '').details[0]}",
            advice="docs/storage.md lists the environment variables that it needs",
        ) from error
    with _making:
        key = f"{address.bucket}/{address.prefix}"
        return _memories.setdefault(key, kinds.MemoryStore())  # type: ignore[no-any-return]
