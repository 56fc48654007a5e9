"""What a worker was started with: kept in its manifest, and what of it may be told elsewhere.

An environment holds secrets, so all of it stands in the image store alone. Records, which go to the
coordinator and to etcd, have only the addresses in it, the names in variables that are known to
hold a rendezvous, and UUIDs of GPUs: what somebody has to know before the command runs elsewhere.
"""

from __future__ import annotations

import ipaddress
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from coordinator.core.errors import DriverError, Where
from coordinator.core.starting import as_a_word
from worker_shim.images.port import Launch

RENDEZVOUS = frozenset({"MASTER_ADDR", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "RDZV_ENDPOINT"})
NAMED_MAX = 64
VALUE_CHARS_MAX = 16_384  # a longer one is not looked through

_V4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_V6 = re.compile(r"(?<![\w:.])[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}(?![\w:.])")
_GPU = re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def named_in(env: Mapping[str, str]) -> tuple[str, ...]:
    """`VARIABLE=10.0.0.1` for each host and GPU that an environment names; see above."""
    found: dict[str, None] = {}
    for variable in sorted(env):
        value = env[variable]
        if len(value) > VALUE_CHARS_MAX:
            continue
        if variable in RENDEZVOUS and value:
            found[f"{variable}={value}"] = None
            continue
        for word in (*_V4.findall(value), *_V6.findall(value)):
            if _is_a_host(word):
                found[f"{variable}={word}"] = None
        for uuid in _GPU.findall(value):
            found[f"{variable}={uuid}"] = None
    return tuple(found)[:NAMED_MAX]


def _is_a_host(word: str) -> bool:
    try:
        address = ipaddress.ip_address(word)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or address.is_multicast)


def moved(launch: Launch, addresses: Mapping[str, str]) -> Launch:
    """The same command with every old address replaced that stands as a word of its own.

    All at once, so that addresses which change places do so.
    """
    if not addresses:
        return launch
    patterns = [(as_a_word(old), old) for old in addresses]

    def replaced(text: str) -> str:
        spans = {
            match.span(): addresses[old] for each, old in patterns for match in each.finditer(text)
        }
        for (begin, end), new in sorted(spans.items(), reverse=True):
            text = text[:begin] + new + text[end:]
        return text

    return replace(
        launch,
        argv=tuple(map(replaced, launch.argv)),
        env={name: replaced(value) for name, value in launch.env.items()},
    )


def require_startable(launch: Launch, where: Where) -> None:
    """Raise DriverError unless program and working directory are there, before anything goes."""
    if not Path(launch.cwd).is_dir():
        raise DriverError(
            f"the working directory {launch.cwd} is missing on this node",
            where=where,
            advice="make it, or mount it, as on the node where the worker was started",
        )
    program = launch.argv[0]
    path = str(Path(launch.cwd) / program) if "/" in program else program
    if shutil.which(path, path=launch.env.get("PATH")) is None:
        raise DriverError(
            f"the program {program} is missing on this node",
            where=where,
            advice="install it as on the node where the worker was started",
        )
