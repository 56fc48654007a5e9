"""A training job whose optimizers are wrapped as Megatron-LM wraps them; on gloo, with DDP.

    megatron_like.py STEPS SAVE_INTERVAL OUT [STEP_S]

Each rank has a dense optimizer, odd ranks one for experts beside it, chained; `step` of the chain
looks for overflow on all ranks, skips the step or scales, and steps each, which gathers parameters
afterwards. A step accumulates two micro-batches. Every SAVE_INTERVAL steps rank 0 writes its own
checkpoint. OUT/told/RANK has one line a step: the step, `skipped` or not, a digest of the
parameters; OUT/steps/RANK the last step alone. STEP_S is how long a step takes at least.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

OVERFLOWS = (
    1,
    2,
    6,
)  # of loss scales too high: the first steps, as with dynamic scaling, and one more
MICRO_BATCHES = 2
SCALE = 1024.0


class Scaled:
    """One torch optimizer, its master parameters apart from the model's."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: list[torch.nn.Parameter]) -> None:
        self.optimizer, self.model = optimizer, model

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return list(self.optimizer.param_groups)

    def zero_grad(self) -> None:
        for parameter in self.model:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict()}

    def prepare_grads(self) -> bool:
        """Bring gradients to the masters; true where one is not finite."""
        found = False
        for master, parameter in zip(self._masters(), self.model, strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.detach().clone() / SCALE
            found |= not bool(torch.isfinite(master.grad).all())
        return found

    def step_with_ready_grads(self) -> bool:
        """Step, and bring the masters back to the model."""
        self.optimizer.step()
        for master, parameter in zip(self._masters(), self.model, strict=True):
            parameter.data.copy_(master.data)
        return True

    def step(self) -> tuple[bool, float | None, int | None]:
        """Of one that is used alone."""
        if everywhere(self.prepare_grads()):
            return False, None, None
        grad_norm, done = norm(self._masters()), self.step_with_ready_grads()
        gather()
        return done, grad_norm, 0

    def _masters(self) -> list[torch.Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]


class Chain:
    """Several of them as one."""

    def __init__(self, chained: list[Scaled]) -> None:
        self.chained = chained

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for one in self.chained for group in one.param_groups]

    def zero_grad(self) -> None:
        for one in self.chained:
            one.zero_grad()

    def state_dict(self) -> list[dict[str, Any]]:
        return [one.state_dict() for one in self.chained]

    def step(self) -> tuple[bool, float | None, int | None]:
        found = False
        for one in self.chained:
            found |= one.prepare_grads()
        if everywhere(found):
            return False, None, None
        grad_norm = norm(p for one in self.chained for p in one._masters())
        done = all(one.step_with_ready_grads() for one in self.chained)
        gather()
        return done, grad_norm, 0


def gather() -> None:
    """In the place of what brings parameters to all ranks; the last thing in a step."""
    dist.all_reduce(torch.ones(1))


def everywhere(found: bool) -> bool:
    """Whether any rank found it."""
    flag = torch.tensor([float(found)])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def norm(parameters: Iterable[torch.Tensor]) -> float:
    total = torch.zeros(1)
    for parameter in parameters:
        total += parameter.grad.norm() ** 2 if parameter.grad is not None else 0
    return float(total.sqrt())


def scaled(parameters: list[torch.nn.Parameter], kind: type[torch.optim.Optimizer]) -> Scaled:
    masters = [p.detach().clone().requires_grad_() for p in parameters]
    return Scaled(kind(masters, lr=0.01), parameters)


class Model(torch.nn.Module):  # type: ignore[misc]
    """Dense layers that all ranks have, and experts that only odd ranks have."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(7)
        dense = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh())
        self.dense = torch.nn.parallel.DistributedDataParallel(dense)
        torch.manual_seed(rank)
        self.expert = torch.nn.Linear(16, 16) if rank % 2 else None

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        hidden = self.dense(data)
        return torch.as_tensor(hidden if self.expert is None else hidden + self.expert(hidden))

    def optimizer(self) -> Chain | Scaled:
        """A chain only where there is more than one, as in older versions."""
        dense = scaled(list(self.dense.parameters()), torch.optim.AdamW)
        if self.expert is None:
            return dense
        return Chain([dense, scaled(list(self.expert.parameters()), torch.optim.SGD)])


def train_step(model: Model, optimizer: Chain | Scaled, at: int, rank: int) -> bool:
    """Whether it was not skipped."""
    optimizer.zero_grad()
    generator = torch.Generator().manual_seed(1000 * at + rank)
    for micro in range(MICRO_BATCHES):
        last = micro == MICRO_BATCHES - 1
        with contextlib.nullcontext() if last else model.dense.no_sync():
            loss = model(torch.randn(4, 8, generator=generator)).square().mean() / MICRO_BATCHES
            scale = float("inf") if at in OVERFLOWS else SCALE
            (loss * scale).backward()
    updated, _, _ = optimizer.step()
    return updated


def main() -> None:
    steps, save_interval, out = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    step_s = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    for name in ("told", "steps"):
        (out / name).mkdir(exist_ok=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = Model(rank)
    optimizer = model.optimizer()
    with (out / "told" / str(rank)).open("a", buffering=1) as lines:
        for at in range(1, steps + 1):
            updated = train_step(model, optimizer, at, rank)
            digest = hashlib.sha256()
            for parameter in model.parameters():
                digest.update(parameter.detach().numpy().tobytes())
            print(at, "updated" if updated else "skipped", digest.hexdigest()[:16], file=lines)
            if rank == 0 and at % save_interval == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, out / f"iter_{at:07d}.pt")
            (out / f".{rank}").write_text(str(at))
            os.replace(out / f".{rank}", out / "steps" / str(rank))
            time.sleep(step_s)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
