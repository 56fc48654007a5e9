"""What the driver's results mean, whichever way they come.

Numbers and names are those of CUresult. `cuda-checkpoint` prints the driver's own words for one in
quotation marks and ends with its number, of which an exit status keeps eight bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.errors import DriverError

SUCCESS, OPERATING_SYSTEM, NOT_READY = 0, 304, 600
WITHOUT_CUDA = (1, 3)  # INVALID_VALUE, NOT_INITIALIZED: what is said of a process without CUDA


@dataclass(frozen=True)
class Meaning:
    """A result in words."""

    name: str
    words: str  # as cuGetErrorString says it
    advice: str = ""


_KNOWN = (
    (1, "INVALID_VALUE", "invalid argument"),
    (2, "OUT_OF_MEMORY", "out of memory"),
    (3, "NOT_INITIALIZED", "initialization error"),
    (46, "DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"),
    (100, "NO_DEVICE", "no CUDA-capable device is detected"),
    (101, "INVALID_DEVICE", "invalid device ordinal"),
    (304, "OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"),
    (401, "ILLEGAL_STATE", "the operation cannot be performed in the present state"),
    (600, "NOT_READY", "device not ready"),
    (700, "ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    (719, "LAUNCH_FAILED", "unspecified launch failure"),
    (801, "NOT_SUPPORTED", "operation not supported"),
    (999, "UNKNOWN", "unknown error"),
)
_ADVICE = {
    1: "is the map of devices whole, and the pid of a process with CUDA?",
    2: "look at free memory of GPU and host; MIG is not supported",
    3: "the process has not initialised CUDA",
    46: "another process may hold the device alone",
    100: "does this node have its GPUs (nvidia-smi)?",
    101: "NVLS does not survive a restore: NCCL_NVLS_ENABLE=0",
    304: "too little GPU memory, seccomp and missing ptrace rights are usual causes",
    401: "its state is shown by `cuda-checkpoint --get-state --pid PID`",
    600: "work was still running: are all ranks parked?",
    700: "the job goes back to its last snapshot; restore it",
    719: "the job goes back to its last snapshot; restore it",
    801: "managed memory, IPC, MIG or the version of the driver may be the reason",
}
MEANINGS = {code: Meaning(name, words, _ADVICE.get(code, "")) for code, name, words in _KNOWN}


def of_exit_status(status: int, said: str) -> int:
    """The result behind an exit status: the one whose words were said, else the one that fits."""
    for code, meaning in MEANINGS.items():
        if meaning.words in said and code & 0xFF == status:
            return code
    fitting = [code for code in MEANINGS if code & 0xFF == status]
    return fitting[0] if len(fitting) == 1 else status


def refusal(doing: str, code: int, said: str, *, changed: bool) -> DriverError:
    """The error for a result; `changed`: the driver does not promise a good state after it."""
    known = MEANINGS.get(code)
    name = f"CUDA_ERROR_{known.name}" if known else f"CUDA result {code}"
    told = said or (known.words if known else "")
    return DriverError(
        f"{doing}: {name} ({told})" if told else f"{doing}: {name}",
        advice=known.advice if known else "look the result up in the CUDA driver API",
        definite=not changed,
        details=(f"result {code}",),
    )


def no_map(doing: str) -> DriverError:
    """The refusal of a map where a restore takes none."""
    return DriverError(
        f"{doing}: device memory can be put back onto the same GPUs only",
        advice="driver 580 or newer can move it, by cuda-bindings 13 or its own cuda-checkpoint; "
        "or restore where the same GPUs are",
    )
