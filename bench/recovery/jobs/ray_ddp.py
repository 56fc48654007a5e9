"""The job of examples/digits_ddp.py as a training function of Ray Train, with its checkpoints.

Written as docs.ray.io/en/latest/train/user-guides says (fault-tolerance.html, checkpoints.html):
rank 0 reports a checkpoint every so many epochs, every worker loads the last one when the group
was started again. What only this costs is marked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile  # fault tolerance
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import ray
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from examples.digits_ddp import Digits, accuracy, build_model, state_digest


def train(options: dict[str, Any]) -> None:
    """What each worker runs."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options["seed"])
    net = build_model(options["hidden"])
    # fault tolerance: begin
    epochs_run, step, saved = 0, 0, None
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            saved = torch.load(Path(directory) / "state.pt", weights_only=True)
        net.load_state_dict(saved["model"])
        epochs_run, step = saved["epochs_run"], saved["step"]
    # fault tolerance: end
    model = ray.train.torch.prepare_model(net)
    torch.manual_seed(options["seed"] + 1 + rank)
    data = Digits(train=True)
    sampler = DistributedSampler(data, seed=options["seed"], drop_last=True)
    loader = DataLoader(
        data,
        batch_size=options["batch_size"],
        sampler=sampler,
        drop_last=True,
        generator=torch.Generator().manual_seed(options["seed"] + 1 + rank),
    )
    epochs = options["epochs"]
    optimizer = torch.optim.Adam(model.parameters(), lr=options["learning_rate"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    # fault tolerance: begin
    if saved is not None:
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
    # fault tolerance: end
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs_run, epochs):
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
        if (epoch + 1) % options["save_every"] == 0:
            save(rank, net, optimizer, schedule, epoch + 1, step)
        # fault tolerance: end
    digests: list[str] = [""] * world_size
    dist.all_gather_object(digests, state_digest(net, optimizer))
    digest = hashlib.sha256("".join(digests).encode()).hexdigest()
    if rank == 0:
        right = accuracy(net, torch.device("cpu"))
        result = {"digest": digest, "steps": step, "accuracy": right}
        Path(options["result"]).write_text(json.dumps(result) + "\n")


# fault tolerance: begin
def save(
    rank: int,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    epochs_run: int,
    step: int,
) -> None:
    """Report a checkpoint; all workers do, and rank 0's has the state."""
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = None
        if rank == 0:
            state = {
                "model": net.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "epochs_run": epochs_run,
                "step": step,
            }
            torch.save(state, Path(directory) / "state.pt")
            checkpoint = ray.train.Checkpoint.from_directory(directory)
        ray.train.report({"step": step}, checkpoint=checkpoint)
    if rank == 0:  # for the bench
        print(f"checkpoint saved at step {step}", flush=True)  # for the bench


# fault tolerance: end
def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="digits with Ray Train")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--storage", type=Path, required=True)
    parser.add_argument("--save-every", type=int, default=1, help="in epochs")  # fault tolerance
    return parser.parse_args()


def main() -> None:
    """Hand the function to Ray, and wait for its end."""
    options = parse_options()
    ray.init(address="auto")
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={**vars(options), "result": str(options.result)},
        scaling_config=ray.train.ScalingConfig(num_workers=options.workers),
        run_config=ray.train.RunConfig(
            name="digits",
            storage_path=str(options.storage),
            failure_config=ray.train.FailureConfig(max_failures=-1),  # fault tolerance
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
