"""What runs inside a rank: count finished steps, publish them, stop where the shim asks.

Nothing here raises into the job: whatever goes wrong, the hook withdraws and the rank runs on
(`state` is then BROKEN, and the shim names the rank). Standard library only.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

from worker_shim.hook import communicators, replicas, wrappers
from worker_shim.hook.page import (
    FLAG_NO_STEPS,
    PATH_VARIABLE,
    STATE_BROKEN,
    STATE_HELD,
    STATE_PARKED,
    STATE_RUNNING,
)
from worker_shim.hook.slot import HOLD, TARGET, TEAR_DOWN, Slot, claim, open_page

POLL_S = 0.0005
LOOKS_MAX = 1000

_page: tuple[memoryview, int] | None = None  # words, descriptor
_communicators: communicators.Communicators | None = None
_mine: Slot | None = None
_without_steps = 0  # how many `no_steps` are open, one in another
_optimizer_hooks: list[Any] = []
_explicit = False
_outermost = 0  # id of the optimizer whose step is running; one inside it is not counted
_looked_at: set[int] = set()  # ids of optimizers for which a wrapper was looked for
_owed = False  # the step in which the wrapper was found; its end was not seen
_optimizer_thread = 0  # the one whose optimizers are counted: the first that stepped


def load() -> None:
    """Find the control page, claim the slot if this process is a rank, watch torch's optimizers.

    Called when `import torch` ends, or by the first `step`. Does nothing without a page.
    """
    global _advance, _page
    path = os.environ.get(PATH_VARIABLE, "")
    if _page is not None or not path:
        return
    _page = open_page(path)
    os.register_at_fork(after_in_child=_withdraw)
    claim(*_page, stepping=False)
    _advance = _first_step
    _watch_optimizers()


def step() -> None:
    """Say that a training step is finished, in a loop that uses no torch optimizer.

    From its first call on, torch's optimizers are not counted any more. Outside a worker of
    allstop it does nothing; it never raises.
    """
    if not _explicit:
        _count_explicitly()
    _advance()


class no_steps:  # noqa: N801 - it is used like a function
    """`with no_steps():` says that this rank takes none for now, so that it is not thought hung.

    For evaluation, a checkpoint of the job's own, whatever takes long beside the steps. No
    checkpoint that is due by itself begins meanwhile. May be nested; in the thread that steps.
    Outside a worker of allstop it does nothing; it never raises.
    """

    def __enter__(self) -> None:
        _say_no_steps(1)

    def __exit__(self, *error: object) -> None:
        _say_no_steps(-1)


def _say_no_steps(more: int) -> None:
    global _mine, _without_steps
    try:
        _without_steps = max(0, _without_steps + more)
        if _mine is None:
            load()
            _mine = None if _page is None else claim(*_page, stepping=False)
        if _mine is not None:
            flags = _mine.get("flags") & ~FLAG_NO_STEPS
            _mine.put("flags", flags | (FLAG_NO_STEPS if _without_steps else 0))
    except Exception:
        _withdraw()


def _nothing() -> None:
    """Stand in for `_advance` where there is nothing to count."""


_advance: Callable[[], None] = _nothing


def _first_step() -> None:
    """Only who steps is a rank for certain: claim the slot for good, then count in it."""
    global _advance, _communicators, _mine
    _advance = _nothing
    try:
        slot = None if _page is None else claim(*_page, stepping=True)
        if slot is not None:
            _mine = slot
            _communicators = communicators.find(slot)
            _advance = _counting(slot, None if _explicit else replicas.shared_step(sys._getframe()))
            _advance()
    except Exception:
        _withdraw()


def _counting(slot: Slot, shared_step: Callable[[], int] | None = None) -> Callable[[], None]:
    """Make the function that is called at every step of this rank, as cheap as can be.

    Where ranks share a step that is not each one's own count, `shared_step` tells it.

    The count is the process's own: it is part of the snapshot, the page is not. Only the thread
    that made the first step counts; a boundary means nothing in two threads at once.
    """
    words, at, home = slot.words, slot.at("boundary"), get_ident()
    hold_at = HOLD
    count = slot.get("boundary")

    def advance() -> None:
        nonlocal count
        if get_ident() != home:
            return
        count = count + 1 if shared_step is None else shared_step()
        words[at] = count  # publish first, then read the flag: the shim does it the other way round
        if words[hold_at]:
            _stop_here(slot, count)

    return advance


def _stop_here(slot: Slot, boundary: int) -> None:
    """Wait at this boundary as long as the shim wants; return when the rank may go on."""
    try:
        _wait(slot, boundary)
        slot.publish_identity()
        slot.put("parked", 0)
        if _communicators is not None:
            _communicators.rebuild()
        slot.put("state", STATE_RUNNING)
    except Exception:
        slot.put("state", STATE_BROKEN)
        _withdraw()


def _wait(slot: Slot, boundary: int) -> None:
    """Hold until the target is known, go on below it, park at it.

    The flag and the target are read anew at each turn, so a hold that was released and raised
    again while this rank slept is simply the hold it is in.
    """
    words = slot.words
    while generation := words[HOLD]:
        target = words[TARGET]
        if target == 0:
            slot.put("state", STATE_HELD)
            time.sleep(POLL_S)
        elif boundary < target:
            return
        else:
            _park(slot, boundary, generation)


def _park(slot: Slot, boundary: int, generation: int) -> None:
    """Bring the devices to rest, say so, and wait until hold or target change."""
    words = slot.words
    started = time.perf_counter()
    _synchronise_devices()
    slot.put("sync_us", int((time.perf_counter() - started) * 1e6))
    slot.put("state", STATE_PARKED)
    slot.put("parked", generation)
    while words[HOLD] == generation and 0 < words[TARGET] <= boundary:
        if _communicators is not None and words[TEAR_DOWN] == generation:
            _communicators.take_down()
        time.sleep(POLL_S)
    slot.put("parked", 0)


def _synchronise_devices() -> None:
    """Wait for every CUDA device that this process uses; touching another would set it up."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    in_use = getattr(sys.modules["torch"]._C, "_cuda_hasPrimaryContext", None)
    for device in range(cuda.device_count()):
        if in_use is None or in_use(device):
            cuda.synchronize(device)


def _watch_optimizers() -> None:
    optimizer = sys.modules.get("torch.optim.optimizer")
    if optimizer is None or _explicit or _optimizer_hooks:
        return
    _optimizer_hooks.extend(
        (
            optimizer.register_optimizer_step_pre_hook(_step_begins),
            optimizer.register_optimizer_step_post_hook(_step_ends),
        )
    )


def _step_begins(optimizer: object, args: object, kwargs: object) -> None:
    global _outermost, _optimizer_thread
    if get_ident() != _optimizer_thread:
        if _optimizer_thread:
            return
        _optimizer_thread = get_ident()
    if not _outermost or not _is_running(_outermost):
        _outermost = id(optimizer)
        if _outermost not in _looked_at and len(_looked_at) < LOOKS_MAX:
            _look_for_wrapper(_outermost)


def _step_ends(optimizer: object, args: object, kwargs: object) -> None:
    global _outermost
    if _outermost == id(optimizer) and get_ident() == _optimizer_thread:
        _outermost = 0
        _advance()


def _look_for_wrapper(optimizer: int) -> None:
    """Count the steps of what is around this optimizer in its place, from here on.

    The step that runs just now counts when the next one begins: inside it there is no boundary
    that all ranks pass.
    """
    global _outermost, _owed
    _looked_at.add(optimizer)
    try:
        wrapper = wrappers.outermost(sys._getframe(2))
        if wrapper is not None and wrappers.watch(wrapper, _wrapper_begins, _wrapper_ends):
            _outermost, _owed = id(wrapper), True
    except Exception:
        return


def _wrapper_begins(wrapper: object) -> None:
    global _owed
    if _explicit:
        return
    if _owed and get_ident() == _optimizer_thread:
        _owed = False
        _advance()
    _step_begins(wrapper, (), {})


def _wrapper_ends(wrapper: object) -> None:
    if not _explicit:
        _step_ends(wrapper, (), {})


def _is_running(key: int) -> bool:
    """Look whether a method of that optimizer is on the stack.

    If not, its step ended in an exception, which skips the post hook. Only asked when a step
    begins while another seems to run. A frame that was asked for its locals keeps them until it
    ends: the training loop's own is not asked.
    """
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if "step" in code.co_name:
            names = {"self", *code.co_varnames[:1]}
            if any(id(frame.f_locals.get(name)) == key for name in names):
                return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


# torch.compile shall not look into these; importing torch._dynamo to say so would cost a second.
_step_begins._torchdynamo_disable = True  # type: ignore[attr-defined]
_step_ends._torchdynamo_disable = True  # type: ignore[attr-defined]


def _count_explicitly() -> None:
    global _explicit
    _explicit = True
    try:
        load()
        for handle in _optimizer_hooks:
            handle.remove()
    except Exception:
        _withdraw()


def _withdraw() -> None:
    """Count nothing in this process any more: it is a forked child, or the hook met an error."""
    global _advance, _mine
    _advance = _nothing
    _mine = None
