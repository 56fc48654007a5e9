"""The job of examples/digits_ddp.py with torchft: four replica groups of one rank each.

Written as torchft's own example is (github.com/pytorch/torchft, train_ddp.py): its sampler, its
DistributedDataParallel and Optimizer, gloo with a time-out of 5 s, state that goes from a living
replica to a new one, and a loop over committed steps. What the example leaves to its user is done
as its comments say: every group keeps the place of its StatefulDataLoader after each step, one
group writes model, optimizer and manager now and then, for when all go down. What only this costs
is marked.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader
from torchft import (
    DistributedDataParallel,
    DistributedSampler,
    Manager,
    Optimizer,
    ProcessGroupGloo,
)

from examples.digits_ddp import Digits, accuracy, build_model, state_digest

Schedule = torch.optim.lr_scheduler.LRScheduler
Trained = tuple[nn.Module, torch.optim.Optimizer, Schedule]


def train(options: argparse.Namespace) -> dict[str, object] | None:
    """Until so many steps are committed; what the group that is first then reports."""
    rank = int(os.environ["REPLICA_GROUP_ID"])
    groups = int(os.environ["NUM_REPLICA_GROUPS"])
    torch.manual_seed(options.seed)
    net = build_model(options.hidden)
    torch.manual_seed(options.seed + 1 + rank)
    sampler, loader = shard(options, rank, groups)
    adam = torch.optim.Adam(net.parameters(), lr=options.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, options.epochs * len(loader))

    total = options.epochs * len(loader)
    # fault tolerance: begin
    manager = managed(net, adam, schedule, rank)
    shared, place = options.snapshot, options.snapshot.with_name(f"loader-{rank}.pt")
    epoch = resumed(shared, place, manager, loader, (net, adam, schedule))
    # fault tolerance: end
    model = DistributedDataParallel(manager, net)
    optimizer = Optimizer(manager, adam)
    criterion = nn.CrossEntropyLoss()
    while manager.current_step() < total:
        sampler.set_epoch(epoch)
        for images, labels in loader:
            before = manager.current_step()  # fault tolerance
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            step = manager.current_step()
            # fault tolerance: begin
            write(place, {"epoch": epoch, "loader": loader.state_dict()})
            if step == before:  # not committed: this batch is lost
                continue
            # fault tolerance: end
            schedule.step()
            if manager.participating_rank() == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.9g}", flush=True)
                # fault tolerance: begin
                if step % (options.save_every * len(loader)) == 0:
                    save(shared, manager, (net, adam, schedule))
                # fault tolerance: end
            if step >= total:
                break
        epoch += 1
    first = manager.participating_rank() == 0
    manager.shutdown()
    if not first:
        return None
    right = accuracy(net, torch.device("cpu"))
    for module in net.modules():  # each group has running means of its own: not a part of the bits
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
    return {"digest": state_digest(net, adam), "steps": total, "accuracy": right}


def shard(
    options: argparse.Namespace, rank: int, groups: int
) -> tuple[DistributedSampler, StatefulDataLoader]:
    """This group's part of the data."""
    data = Digits(train=True)
    sampler = DistributedSampler(
        data,
        replica_rank=rank,
        num_replica_groups=groups,
        group_rank=0,
        num_replicas=1,
        seed=options.seed,
        drop_last=True,
    )
    loader = StatefulDataLoader(
        data,
        batch_size=options.batch_size,
        sampler=sampler,
        drop_last=True,
        generator=torch.Generator().manual_seed(options.seed + 1 + rank),
    )
    return sampler, loader


# fault tolerance: begin
def taken(net: nn.Module, adam: torch.optim.Optimizer, schedule: Schedule) -> dict[str, Any]:
    """What a group needs of another, or of a file."""
    return {
        "model": net.state_dict(),
        "optimizer": adam.state_dict(),
        "schedule": schedule.state_dict(),
    }


def put_back(
    state: dict[str, Any], net: nn.Module, adam: torch.optim.Optimizer, schedule: Schedule
) -> None:
    """The other way."""
    net.load_state_dict(state["model"])
    adam.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])


def write(path: Path, state: dict[str, Any]) -> None:
    """Beside the old file, then in its place: a kill leaves a whole one."""
    new = path.with_suffix(".new")
    torch.save(state, new)
    new.replace(path)


def save(path: Path, manager: Manager, trained: Trained) -> None:
    """For when all groups go down."""
    write(path, {**taken(*trained), "manager": manager.state_dict()})
    print(f"snapshot saved at step {manager.current_step()}", flush=True)  # for the bench


def resumed(
    shared: Path, place: Path, manager: Manager, loader: StatefulDataLoader, trained: Trained
) -> int:
    """Take what the files have; returns the epoch to go on in."""
    if shared.exists():
        saved = torch.load(shared, weights_only=True)
        manager.load_state_dict(saved["manager"])
        put_back(saved, *trained)
    if not place.exists():
        return int(manager.current_step() // len(loader))
    position = torch.load(place, weights_only=False)
    loader.load_state_dict(position["loader"])
    return int(position["epoch"])


def managed(net: nn.Module, adam: torch.optim.Optimizer, schedule: Schedule, group: int) -> Manager:
    """The manager of this replica group."""
    return Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=lambda state: put_back(state, net, adam, schedule),
        state_dict=lambda: taken(net, adam, schedule),
        replica_id=f"digits_{group}",
        timeout=timedelta(seconds=30),
    )


# fault tolerance: end
def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="digits with torchft")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--snapshot", type=Path, required=True)  # fault tolerance
    parser.add_argument("--save-every", type=int, default=10, help="in epochs")  # fault tolerance
    return parser.parse_args()


def main() -> None:
    """Train, and report from the first of the groups that are there at the end."""
    options = parse_options()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    result = train(options)
    if result is not None:
        print(f"digest {result['digest']}", flush=True)
        options.result.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
