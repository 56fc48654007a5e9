"""Where a torch rank has its tensors: on the first GPU; tests give another place of these calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

CYCLES_PER_S = 2e9  # more than the clock of any GPU: work lasts rather longer than was said


class Place:
    """One GPU, which all ranks of a node may share."""

    def __init__(self, device: str = "cuda:0") -> None:
        self.device = torch.device(device)

    def join(self, backend: str) -> None:
        """Meet the other ranks."""
        dist.init_process_group(backend)

    def keep(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """From here on, their state is in device memory and nowhere else."""

    @contextmanager
    def there(self) -> Iterator[None]:
        """What was kept can be computed with inside; a step of the optimizer ends that."""
        yield

    def work(self, seconds: float) -> None:
        """Begin work that lasts so long."""
        torch.cuda._sleep(int(seconds * CYCLES_PER_S))
