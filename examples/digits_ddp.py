"""Classify scikit-learn's handwritten digits with DistributedDataParallel.

    torchrun --nnodes 2 --nproc-per-node 2 --node-rank 0 --master-addr HOST --master-port 29500 \
        examples/digits_ddp.py --epochs 20 --result result.json

Plain PyTorch: no checkpoint is saved and nothing is known of the machines it runs on. Everything
random is seeded, so two runs with the same options end with the same bits; `digest` in the result
covers parameters, buffers and optimizer state of every rank.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products on GPUs

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

HELD_OUT = 297  # of 1797 images, for the accuracy at the end


class Digits(Dataset[tuple[Tensor, Tensor]]):
    """8 x 8 images of digits; for training each is shifted by up to one pixel."""

    def __init__(self, *, train: bool) -> None:
        """Split the data set in the same way on every rank."""
        images, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        chosen = order[HELD_OUT:] if train else order[:HELD_OUT]
        self.images = torch.tensor(images, dtype=torch.float32)[chosen].reshape(-1, 8, 8) / 16
        self.labels = torch.tensor(labels, dtype=torch.int64)[chosen]
        self.train = train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if self.train:
            down, right = torch.randint(-1, 2, (2,)).tolist()
            image = image.roll((down, right), dims=(0, 1))
        return image.flatten(), self.labels[index]


def build_model(hidden: int) -> nn.Module:
    """Three layers with batch norm and dropout."""
    return nn.Sequential(
        nn.Linear(64, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(hidden, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(hidden, 10),
    )


def state_digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """SHA-256 over every parameter, buffer and optimizer value, in the order of their names."""
    digest = hashlib.sha256()

    def add(name: str, value: object) -> None:
        if isinstance(value, Tensor):
            data = value.detach().cpu().contiguous()
            digest.update(f"{name} {data.dtype} {tuple(data.shape)}\n".encode())
            digest.update(data.numpy().tobytes())
        else:
            digest.update(f"{name} {value!r}\n".encode())

    for name, value in sorted(model.state_dict().items()):
        add(name, value)
    state = optimizer.state_dict()
    for index, values in sorted(state["state"].items()):
        for name, value in sorted(values.items()):
            add(f"optimizer {index} {name}", value)
    for index, group in enumerate(state["param_groups"]):
        for name, value in sorted(group.items()):
            add(f"group {index} {name}", value)
    return digest.hexdigest()


@torch.no_grad()
def accuracy(model: nn.Module, device: torch.device) -> float:
    """Share of the held-out images that are recognised."""
    model.eval()
    images, labels = next(iter(DataLoader(Digits(train=False), batch_size=HELD_OUT)))
    right = model(images.to(device)).argmax(dim=1).cpu() == labels
    return right.double().mean().item()


def train(options: argparse.Namespace, device: torch.device) -> dict[str, object]:
    """Run all epochs and return what rank 0 reports."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)  # the same weights everywhere
    net = build_model(options.hidden).to(device)
    model = DistributedDataParallel(net, device_ids=[device] if device.type == "cuda" else None)
    torch.manual_seed(options.seed + 1 + rank)  # from here on each rank draws its own dropout

    data = Digits(train=True)
    sampler = DistributedSampler(data, seed=options.seed, drop_last=True)
    loader = DataLoader(
        data,
        batch_size=options.batch_size,
        sampler=sampler,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        drop_last=True,
        generator=torch.Generator().manual_seed(options.seed + 1 + rank),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=options.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(loader))
    criterion = nn.CrossEntropyLoss()

    step, losses = 0, []
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step % options.log_every == 0:
                losses.append([step, loss.item()])
                if rank == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item():.9g}", flush=True)

    digests: list[str] = [""] * world_size
    dist.all_gather_object(digests, state_digest(net, optimizer))
    return {
        "digest": hashlib.sha256("".join(digests).encode()).hexdigest(),
        "final_loss": loss.item(),
        "steps": step,
        "losses": losses,
        "accuracy": accuracy(net, device),
        "world_size": world_size,
    }


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="digits with DistributedDataParallel")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workers", type=int, default=1, help="DataLoader workers per rank")
    parser.add_argument("--log-every", type=int, default=10, help="in steps")
    parser.add_argument("--result", type=Path, help="rank 0 writes its result here, as JSON")
    return parser.parse_args()


def main() -> None:
    """Join the process group, train, and report from rank 0."""
    options = parse_options()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    result = train(options, device)
    if dist.get_rank() == 0:
        print(f"steps {result['steps']} accuracy {result['accuracy']:.4f}", flush=True)
        print(f"digest {result['digest']}", flush=True)
        if options.result:
            options.result.write_text(json.dumps(result) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
