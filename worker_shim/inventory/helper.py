"""Ask NVML what this node's GPUs are: `python -m worker_shim.inventory.helper`, one JSON object.

A process of its own, since the driver's library can hang or crash whoever has loaded it, and keeps
devices open. Each question that a driver does not know, or refuses, is left out and no error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from worker_shim.inventory.kernel_log import xids

PROCESSES_MAX = 256  # of one GPU
LINKED = 0  # NVML_P2P_STATUS_OK
BY_NVLINK = 2  # NVML_P2P_CAPS_INDEX_NVLINK

Answer = TypeVar("Answer")

# the second one is no NVMLError: it is how pynvml tells of some functions that a driver lacks
REFUSED = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)


def main(drivers: Path, kernel_log: Path) -> dict[str, Any]:
    """The whole inventory; `unseen` says why these are not all GPUs."""
    pynvml.nvmlInit()
    logged = xids(kernel_log)
    looked: dict[str, None] = {"kernel_log": None} if logged is not None else {}
    count = pynvml.nvmlDeviceGetCount()
    handles = [_handle(index) for index in range(count)]
    gpus = []
    for index, handle in enumerate(handles):
        if isinstance(handle, str):
            gpus.append({"index": index, "sick": handle})
            continue
        gpus.append(_gpu(index, handle, looked))
    _link(gpus, handles)
    for gpu in gpus:
        codes = (logged or {}).get(_short(str(gpu.get("pci_address", ""))), ())
        if codes and not gpu["sick"]:
            gpu["sick"] = f"the kernel's log has Xid {', '.join(map(str, codes))} of it"
    found = {
        "driver": _ask(pynvml.nvmlSystemGetDriverVersion) or "",
        "cuda": _cuda(_ask(pynvml.nvmlSystemGetCudaDriverVersion) or 0),
        "looked": list(looked),
        "gpus": gpus,
        "unseen": _unseen(gpus, drivers),
    }
    pynvml.nvmlShutdown()
    return found


def _ask(question: Callable[..., Answer], *arguments: Any) -> Answer | None:
    """An answer, or None where this driver does not know or the GPU does not have it."""
    try:
        return question(*arguments)
    except REFUSED:
        return None


def _handle(index: int) -> Any:
    """The GPU, or why there is none of this number to talk to."""
    try:
        return pynvml.nvmlDeviceGetHandleByIndex(index)
    except REFUSED as error:
        return f"NVML: {error}"


def _gpu(index: int, handle: Any, looked: dict[str, None]) -> dict[str, Any]:
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        pci = pynvml.nvmlDeviceGetPciInfo(handle)
        known = {
            "uuid": pynvml.nvmlDeviceGetUUID(handle),
            "model": pynvml.nvmlDeviceGetName(handle),
            "memory_bytes": memory.total,
            "memory_free_bytes": memory.free,
            "pci_address": _text(pci.busId).lower(),
        }
    except REFUSED as error:
        uuid = _ask(pynvml.nvmlDeviceGetUUID, handle) or ""
        return {"index": index, "uuid": uuid, "sick": f"NVML: {error}"}
    capability = _ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    minor = _ask(pynvml.nvmlDeviceGetMinorNumber, handle)
    mig = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    sick, remarks = _health(handle, looked)
    return {
        "index": index,
        **known,
        "architecture": "{}.{}".format(*capability) if capability else "",
        "minor": -1 if minor is None else minor,
        "mig": bool(mig and any(mig)),  # it is to come with the next reset: as good as there
        "persistence": bool(_ask(pynvml.nvmlDeviceGetPersistenceMode, handle)),
        "sick": sick,
        "remarks": remarks,
        "processes": _processes(handle),
        "links": [],
    }


def _health(handle: Any, looked: dict[str, None]) -> tuple[str, list[str]]:
    """Why a GPU is not to be used, and what is worth knowing and keeps nobody from using it."""
    reasons: list[str] = []
    remarks: list[str] = []
    ecc, kind = pynvml.nvmlDeviceGetTotalEccErrors, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    volatile = _ask(ecc, handle, kind, pynvml.NVML_VOLATILE_ECC)
    aggregate = _ask(ecc, handle, kind, pynvml.NVML_AGGREGATE_ECC)
    if volatile is not None or aggregate is not None:
        looked["ecc"] = None
    if volatile:
        reasons.append(f"{volatile} uncorrected memory errors since the driver was loaded")
    if aggregate:
        remarks.append(f"{aggregate} uncorrected memory errors in its life")
    rows = _ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None:
        looked["remapped_rows"] = None
        _, uncorrected, pending, failed = rows
        if failed:
            reasons.append("a row of its memory could not be remapped")
        if pending:
            remarks.append("a row of its memory is remapped at the next reset")
        if uncorrected:
            remarks.append(f"{uncorrected} rows of its memory are remapped")
    retired = _ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    if retired is not None:
        looked["retired_pages"] = None
    if retired:
        remarks.append("a page of its memory is retired at the next reset")
    return "; ".join(reasons), remarks


def _processes(handle: Any) -> list[tuple[int, int]]:
    """Pid, as the driver counts, and bytes of each process that computes; -1: not told."""
    found = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    told = [(p.pid, -1 if p.usedGpuMemory is None else p.usedGpuMemory) for p in found]
    return told[:PROCESSES_MAX]


def _link(gpus: list[dict[str, Any]], handles: list[Any]) -> None:
    """Who reaches whom by NVLink, through a switch too."""
    for one, gpu in zip(handles, gpus, strict=True):
        if isinstance(one, str) or "links" not in gpu:
            continue
        for other, peer in zip(handles, gpus, strict=True):
            if other is one or isinstance(other, str) or not peer.get("uuid"):
                continue
            if _ask(pynvml.nvmlDeviceGetP2PStatus, one, other, BY_NVLINK) == LINKED:
                gpu["links"].append(peer["uuid"])
        gpu["links"].sort()


def _unseen(gpus: list[dict[str, Any]], drivers: Path) -> str:
    """Why a map could not name all GPUs: some are kept from this container, or do not answer."""
    told = [f"GPU {gpu['index']} did not tell its UUID" for gpu in gpus if not gpu.get("uuid")]
    try:
        there = sum(1 for _ in (drivers / "gpus").iterdir())
    except OSError:
        there = 0
    if there > len(gpus):
        told.insert(0, f"the kernel's driver has {there} GPUs and {len(gpus)} can be seen")
    return "; ".join(told)


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def _short(address: str) -> str:
    """`00000000:17:00.0` as the kernel's log has it: `0000:17:00`."""
    return address[4:].rpartition(".")[0]


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    try:
        inventory = main(Path(sys.argv[1]), Path(sys.argv[2]))
    except REFUSED as failed:
        inventory = {"trouble": f"NVML: {failed}"}
    json.dump(inventory, sys.stdout)
