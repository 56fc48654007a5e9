"""What of NCCL speaks against saving a worker: seen in /proc, held against the job's mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from coordinator.core.model import Finding, Severity
from worker_shim.hook.communicators import MODE_VARIABLE, REBUILD
from worker_shim.nccl import live
from worker_shim.nccl.launching import OF_KEEP
from worker_shim.nccl.modes import KEEP, SHIM_LIBRARY, driver_version, why_not_keep
from worker_shim.process.proc import read_environment
from worker_shim.process.view import ProcessView, TreeView

SHOWN_MAX = 3
LIVE = "nccl"  # the coordinator knows it: no freeze where it is found

Environment = Mapping[str, str]


def check(tree: TreeView) -> Iterator[Finding]:
    """Look at every process that has NCCL, or live communicators."""
    found = live.evidence(tree)
    for process in tree.processes:
        seen = (*found.get(process.process.pid, ()), *live.groups(process))
        if not seen and not live.has_library(process):
            continue
        environment = read_environment(process.process.pid)
        if environment.get("WORLD_SIZE") == "1":
            seen = found.get(process.process.pid, ())  # a group of one has nobody to wait for
        of_mode = _MODES.get(environment.get(MODE_VARIABLE, ""), _without)
        yield from of_mode(process, environment, seen)


def _without(
    process: ProcessView, environment: Environment, seen: tuple[str, ...]
) -> Iterator[Finding]:
    if seen:
        yield process.finding(
            Severity.REFUSE,
            LIVE,
            f"has live NCCL communicators ({_shown(seen)}) and its job's mode has none",
            f"start the job with `--nccl rebuild` and NCCL's {SHIM_LIBRARY}, or with gloo",
        )


def _rebuild(
    process: ProcessView, environment: Environment, seen: tuple[str, ...]
) -> Iterator[Finding]:
    if seen and live.has_shim(process):
        yield _live(process, seen, "destroyed for a dump and rebuilt after it")
    elif seen:
        yield process.finding(
            Severity.REFUSE,
            "nccl_shim",
            f"has live NCCL communicators ({_shown(seen)}) and not {SHIM_LIBRARY}, which destroys "
            "and rebuilds them",
            "do not clear LD_PRELOAD in what starts the ranks",
        )
    if environment.get("NCCL_NVLS_ENABLE") != "0":
        yield _wrong(process, "NCCL_NVLS_ENABLE", "0", "the driver hangs with a multicast group")
    shared = environment.get("NCCL_SHM_DISABLE") == "1"
    if environment.get("NCCL_CUMEM_HOST_ENABLE") != "0" and not shared:
        yield _wrong(process, "NCCL_CUMEM_HOST_ENABLE", "0", "a rebuild may hang with it")


def _keep(
    process: ProcessView, environment: Environment, seen: tuple[str, ...]
) -> Iterator[Finding]:
    if seen:
        yield _live(process, seen, "kept")
    if why := why_not_keep(driver_version()):
        yield process.finding(
            Severity.REFUSE,
            "nccl_keep",
            f"is to keep its NCCL communicators, but {why}",
            "start the job with `--nccl rebuild`, or use another driver",
        )
    for name, value, why in (("NCCL_NVLS_ENABLE", "0", "a multicast group hangs"), *OF_KEEP):
        if environment.get(name) != value:
            yield _wrong(process, name, value, why)


_MODES: dict[str, Callable[[ProcessView, Environment, tuple[str, ...]], Iterator[Finding]]] = {
    REBUILD: _rebuild,
    KEEP: _keep,
}


def _live(process: ProcessView, seen: tuple[str, ...], what: str) -> Finding:
    """Of this code whatever it says forbids a freeze: only a step finds no collective in flight."""
    return process.finding(
        Severity.WARN,
        LIVE,
        f"has live NCCL communicators ({_shown(seen)}), which are {what}",
        "nothing is to be done; --cut freeze is refused",
    )


def _wrong(process: ProcessView, name: str, value: str, why: str) -> Finding:
    return process.finding(
        Severity.REFUSE,
        "nccl_setting",
        f"was started without {name}={value}: {why}",
        "it is read once, so start the job anew with it; `allstop shim run --nccl` sets it",
    )


def _shown(seen: tuple[str, ...]) -> str:
    more = f" and {len(seen) - SHOWN_MAX} more" if len(seen) > SHOWN_MAX else ""
    return ", ".join(seen[:SHOWN_MAX]) + more
