"""The one place where errors of object storage become ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from coordinator.core.errors import DriverError, StoreAway
from worker_shim.images.objects.port import ObjectMissing

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_QUERY = re.compile(r"(https?://[^\s?]+)\?[^\s,)]+")  # may hold a signature
_FULL = ("QuotaExceeded", "StorageFull", "InsufficientStorage", "AccountStorageLimit")
_SAID_CHARS_MAX = 400


def status_of(error: BaseException) -> int:
    """The HTTP status that a store answered, 0 for none: the library only tells it in words."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


@contextmanager
def mapping(where: str, name: str, *, writing: bool = False) -> Iterator[None]:
    """Raise ours for theirs; `writing`: an answer that was lost leaves open what has happened."""
    try:
        yield
    except DriverError:
        raise
    except (BaseError, OSError, ValueError) as error:
        raise mapped(error, where, name, writing=writing) from error


def mapped(error: Exception, where: str, name: str, *, writing: bool = False) -> DriverError:
    """What a failure means: missing, full, refused, out of reach, or something else."""
    said = _QUERY.sub(r"\1?…", str(error).split("\n\nDebug source")[0].strip())
    details = (" ".join(said.split())[:_SAID_CHARS_MAX],)
    status, code = status_of(error), found[1] if (found := _CODE.search(said)) else ""
    if code in ("NoSuchBucket", "ContainerNotFound"):
        advice = "make it first; allstop makes no buckets"
        return StoreAway(f"there is no {where}", advice=advice, details=details)
    if isinstance(error, FileNotFoundError) or status == 404:
        return ObjectMissing(f"{where} has no {name}", details=details)
    if status == 507 or any(word in code for word in _FULL):
        advice = "make room there, or delete old snapshots"
        return DriverError(f"no room left in {where}", advice=advice, details=details)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in (401, 403):
        reason = f" ({code})" if code else ""
        advice = "the credentials need to read, write, list and delete below it"
        return StoreAway(f"{where} refuses us{reason}", advice=advice, details=details)
    if "credential" in said.lower() or "169.254.169.254" in said:
        advice = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the role of the machine"
        return StoreAway(f"no credentials for {where}", advice=advice, details=details)
    return _troubled(where, name, status, details, writing)


def _troubled(
    where: str, name: str, status: int, details: tuple[str, ...], writing: bool
) -> DriverError:
    """Errors after which the request may have been carried out."""
    if 400 <= status < 500 and status not in (408, 409):
        return DriverError(f"{where} answers {status} for {name}", details=details)
    what = f"{where} answers {status} for {name}" if status else f"{where} does not answer"
    advice = "is it up, and the network to it?"
    return StoreAway(what, advice=advice, definite=not writing, details=details)
