"""Optimizers around optimizers: Megatron's, gradient scalers, others that torch knows nothing of.

torch calls its hooks for each of its own optimizers. A wrapper may step several of them in one
training step, not as many on every rank, or none when gradients overflow; then only the calls of
the wrapper itself are the same on all ranks. Standard library only; runs inside the user's ranks.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

PARTS = ("step", "zero_grad", "param_groups", "state_dict")

Around = Callable[[object], None]


def outermost(frame: FrameType | None) -> object | None:
    """The outermost wrapper whose `step` is on the stack from `frame` on; None without one."""
    found = None
    while frame is not None:
        code = frame.f_code
        if code.co_name == "step" and code.co_argcount:
            owner = frame.f_locals.get(code.co_varnames[0])
            if _is_wrapper(owner):
                found = owner
        frame = frame.f_back
    return found


def _is_wrapper(thing: object) -> bool:
    """Whether it is an optimizer in all but its base class, or a gradient scaler.

    A trainer, an agent or an engine is neither: its `step` may be as long as an epoch.
    """
    torch = sys.modules.get("torch")
    kind = type(thing)
    if torch is None or isinstance(thing, torch.nn.Module):
        return False
    if getattr(getattr(kind, "step", None), "hooked", False):  # by torch, or watched already
        return False
    if isinstance(thing, torch.amp.GradScaler):
        return True
    # looked up on the class first: a property may do anything
    return all(hasattr(kind, name) or name in getattr(thing, "__dict__", ()) for name in PARTS)


def watch(wrapper: Any, begins: Around, ends: Around) -> bool:
    """Have both called around each further step of the wrapper, and of others of its class.

    False where that cannot be; nothing is changed then. An exception leaves `ends` out, as it does
    with torch's own hooks.
    """
    try:
        if "step" in getattr(
            wrapper, "__dict__", ()
        ):  # such as a scheduler's own wrapping of the bound method
            wrapper.step = _around(wrapper.step, begins, ends, wrapper)
        else:
            kind = type(wrapper)
            kind.step = _around(kind.step, begins, ends)
    except (TypeError, AttributeError):
        return False
    return True


def _around(
    plain: Callable[..., Any], begins: Around, ends: Around, *bound: object
) -> Callable[..., Any]:
    @functools.wraps(plain)
    def step(*args: Any, **kwargs: Any) -> Any:
        self = bound[0] if bound else args[0]
        begins(self)
        result = plain(*args, **kwargs)
        ends(self)
        return result

    step.hooked = True  # type: ignore[attr-defined]
    return step
