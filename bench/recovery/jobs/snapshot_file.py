"""The job of examples/digits_ddp.py with a snapshot file, as PyTorch's DDP tutorial writes one.

Source of the pattern: pytorch.org/tutorials/beginner/ddp_series_fault_tolerance.html. Rank 0 saves
every so many epochs; every rank loads what it finds when torchrun has started it again. What only
this costs is marked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from examples.digits_ddp import Digits, accuracy, build_model, state_digest


def train(options: argparse.Namespace) -> dict[str, object]:
    """As in the plain script, with a snapshot loaded before and saved after an epoch."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    net = build_model(options.hidden)
    # fault tolerance: begin
    epochs_run, step, snapshot = 0, 0, None
    if options.snapshot.exists():
        snapshot = torch.load(options.snapshot, weights_only=True)
        net.load_state_dict(snapshot["model"])
        epochs_run, step = snapshot["epochs_run"], snapshot["step"]
    # fault tolerance: end
    model = DistributedDataParallel(net)
    torch.manual_seed(options.seed + 1 + rank)
    data = Digits(train=True)
    sampler = DistributedSampler(data, seed=options.seed, drop_last=True)
    loader = DataLoader(
        data,
        batch_size=options.batch_size,
        sampler=sampler,
        drop_last=True,
        generator=torch.Generator().manual_seed(options.seed + 1 + rank),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=options.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(loader))
    # fault tolerance: begin
    if snapshot is not None:
        optimizer.load_state_dict(snapshot["optimizer"])
        schedule.load_state_dict(snapshot["schedule"])
    # fault tolerance: end
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs_run, options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if rank == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.9g}", flush=True)
        # fault tolerance: begin
        if rank == 0 and (epoch + 1) % options.save_every == 0:
            save(options.snapshot, net, optimizer, schedule, epoch + 1, step)
        # fault tolerance: end
    digests: list[str] = [""] * world_size
    dist.all_gather_object(digests, state_digest(net, optimizer))
    digest = hashlib.sha256("".join(digests).encode()).hexdigest()
    return {"digest": digest, "steps": step, "accuracy": accuracy(net, torch.device("cpu"))}


# fault tolerance: begin
def save(
    path: Path,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    epochs_run: int,
    step: int,
) -> None:
    """Write the snapshot beside the old one, then replace that: a kill leaves a whole file."""
    snapshot = {
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "epochs_run": epochs_run,
        "step": step,
    }
    torch.save(snapshot, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)
    print(f"snapshot saved at step {step}", flush=True)  # for the bench


# fault tolerance: end
def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="digits with a snapshot file")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--snapshot", type=Path, required=True)  # fault tolerance
    parser.add_argument("--save-every", type=int, default=1, help="in epochs")  # fault tolerance
    return parser.parse_args()


def main() -> None:
    """Join the process group, train, and report from rank 0."""
    options = parse_options()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    result = train(options)
    if dist.get_rank() == 0:
        print(f"digest {result['digest']}", flush=True)
        options.result.write_text(json.dumps(result) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
