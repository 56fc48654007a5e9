"""A small model that is trained with an optimizer, the same way every time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from math import isqrt

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench.gpu.place import Place

BATCH = 16
TENSORS = 3  # of a parameter's size: itself and what Adam keeps of it
RATE = 1e-3


class Training:
    """Parameters and optimizer state of about so many MiB in all."""

    def __init__(self, place: Place, mib: int, *, rank: int = 0, together: bool = False) -> None:
        """`together`: with the other ranks of the process group, of which this is `rank`."""
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(0)
        width = isqrt((mib << 20) // (4 * TENSORS))
        self._place, self._rank, self._width = place, rank, width
        self._model = nn.Sequential(nn.Linear(width, width), nn.Tanh()).to(place.device)
        self._forward: nn.Module = self._model
        if together:
            self._forward = DistributedDataParallel(self._model)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=RATE)
        self.steps = 0
        place.keep(self._model, self._optimizer)

    def step(self) -> None:
        """One step, on data of this step and rank."""
        self.steps += 1
        with self._place.there():
            seed = torch.Generator().manual_seed(self.steps * 1000 + self._rank)
            data = torch.randn(BATCH, self._width, generator=seed).to(self._place.device)
            loss = (self._forward(data) - data.roll(1, 1)).square().mean()
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()

    def digest(self) -> str:
        """Of every parameter and of all that the optimizer keeps."""
        digest = hashlib.sha256()
        with self._place.there():
            for name, tensor in tensors(self._model, self._optimizer):
                digest.update(name.encode())
                digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """State that a step changes, by name."""
    for name, parameter in model.named_parameters():
        yield name, parameter
        for kind, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                yield f"{name} {kind}", value
