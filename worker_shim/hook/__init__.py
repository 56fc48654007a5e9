"""What a rank sees of allstop: `step`, for training loops without a torch optimizer."""

from worker_shim.hook.rank import step

__all__ = ["step"]
