"""Versions of the libraries that a process has mapped, from the files themselves."""

from __future__ import annotations

import contextlib
import os
import re
from functools import lru_cache
from pathlib import Path

from worker_shim.process.view import ProcessView

NCCL = re.compile(r"/libnccl\.so[.\d]*$")
UNKNOWN = "unknown"
TORCH = re.compile(r"/torch/lib/libtorch\w*\.so$")
SEARCHED_BYTES_MAX = 1 << 30  # an NCCL for many GPU architectures has some 400 MB
CHUNK_BYTES = 4 << 20  # between chunks the shim's other threads have their turn
TEXT_BYTES = 64  # more than the sentence has, which two chunks may share
_NCCL_NAME = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)$")
_NCCL_TEXT = re.compile(rb"NCCL version (\d+\.\d+\.\d+)[^.\d]")
_TORCH_INFO = re.compile(r"^torch-([^-]+)\.dist-info$")


def nccl_versions(process: ProcessView) -> tuple[str, ...]:
    """Of every NCCL that is mapped; one that does not say is UNKNOWN."""
    return tuple(_version(path, "nccl") for path in _mapped(process, NCCL))


def torch_versions(process: ProcessView) -> tuple[str, ...]:
    """Of every PyTorch that is mapped, several libraries of which are one."""
    return tuple(dict.fromkeys(_version(path, "torch") for path in _mapped(process, TORCH)))


def _mapped(process: ProcessView, wanted: re.Pattern[str]) -> tuple[str, ...]:
    paths = (area.path for area in process.mappings)
    return tuple(dict.fromkeys(path for path in paths if wanted.search(path)))


def _version(path: str, kind: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return UNKNOWN
    stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    return _nccl(path, stamp) if kind == "nccl" else _torch(path, stamp)


@lru_cache(maxsize=64)
def _nccl(path: str, stamp: tuple[int, ...]) -> str:
    """By the name behind the link, else by the sentence that NCCL prints; read once per file."""
    if named := _NCCL_NAME.search(os.path.realpath(path)):
        return named[1]
    with contextlib.suppress(OSError), open(path, "rb") as file:
        kept = b""
        for _ in range(SEARCHED_BYTES_MAX // CHUNK_BYTES):
            chunk = file.read(CHUNK_BYTES)
            if said := _NCCL_TEXT.search(kept + chunk):
                return said[1].decode()
            if not chunk:
                break
            kept = chunk[-TEXT_BYTES:]
    return UNKNOWN


@lru_cache(maxsize=64)
def _torch(path: str, stamp: tuple[int, ...]) -> str:
    """By the installation record beside the package."""
    with contextlib.suppress(OSError):
        for name in os.listdir(Path(path).parents[2]):
            if record := _TORCH_INFO.match(name):
                return record[1]
    return UNKNOWN
