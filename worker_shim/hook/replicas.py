"""The step that torchft's replica groups share, for a rank that trains under a manager of it.

A group that joins late, or again, takes its state and its place from a living one: what it has
counted by itself says nothing to the others, the manager's step does. Standard library only; this
module runs inside the user's ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

MANAGER_MODULE = "torchft.manager"
DEPTH_MAX = 64  # of calls between torchft's optimizer and the one that it steps


def shared_step(frame: FrameType | None) -> Callable[[], int] | None:
    """What tells the groups' step, when torchft steps an optimizer in `frame` or above it.

    torchft's optimizer counts a step as committed before it steps the one it wraps. Where that is
    stepped by itself (LocalSGD, DiLoCo) there is no such step at every boundary: None.
    """
    manager_class = getattr(sys.modules.get(MANAGER_MODULE), "Manager", None)
    if manager_class is None:
        return None
    for _ in range(DEPTH_MAX):
        if frame is None:
            return None
        if frame.f_code.co_name == "step":
            manager: Any = getattr(frame.f_locals.get("self"), "manager", None)
            if isinstance(manager, manager_class):
                current: Callable[[], int] = manager.current_step
                return current
        frame = frame.f_back
    return None
