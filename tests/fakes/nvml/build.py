"""Compiling the library and writing what it tells."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.support.compiling import SHARED, compiled

HERE = Path(__file__).parent
GIB = 1 << 30
DRIVER = "580.95.05"


def build(into: Path, without: Iterable[str] = ()) -> Path:
    """`libnvidia-ml.so.1` in a folder, lacking functions as an older driver's does."""
    into.mkdir(parents=True, exist_ok=True)
    library, hidden = into / "libnvidia-ml.so.1", into / "hidden"
    names = "".join(f"{each}; " for each in ("no_such_function", *without))
    hidden.write_text(f"{{ local: {names} }};")
    linked = ("-Wl,-soname,libnvidia-ml.so.1", f"-Wl,--version-script={hidden}")
    compiled(library, HERE / "nvml.c", *SHARED, *linked)
    return into


def described(
    uuids: Iterable[str],
    *lines: str,
    name: str = "NVIDIA H200",
    first_bus: int = 0x17,
    free: int = 140 * GIB,
    driver: str = DRIVER,
) -> str:
    """A node with these GPUs, alike and all linked; further lines are about the last one."""
    names = list(uuids)
    told = [f"driver {driver}", "cuda 13000"]
    for index, uuid in enumerate(names):
        told += [f"gpu {uuid}", f"name {name}", f"pci 00000000:{first_bus + index:02X}:00.0"]
        told += [f"total {141 * GIB}", f"free {free}", "capability 9 0", f"minor {index}"]
        told += ["mig 0", "ecc 0 0", "remap 0 0 0 0", "persistence 1"]
        told += [f"link {other}" for other in range(len(names)) if other != index]
    return "\n".join([*told, *lines]) + "\n"
