"""What a rank sees of allstop, if it wants to.

`step` is for training loops without a torch optimizer; `with no_steps():` for what a rank does
between steps and that takes long: evaluation, a checkpoint of its own.
"""

from worker_shim.hook.rank import no_steps, step

__all__ = ["no_steps", "step"]
