"""Tensors on a fake device: between steps their bytes are in its memory, the host's are zero."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.gpu.place import Place
from bench.gpu.training import tensors
from tests.fakes.gpu.device import Gpu
from tests.fakes.gpu.told import begin_work

NCCL_PORT = 7901


class FakePlace(Place):
    """What was not saved with the device is lost, as it is with a real one."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__("cpu")
        self._gpu = gpu
        self._kept: list[tuple[nn.Module, torch.optim.Optimizer]] = []
        self._here = False
        self._sums: ctypes.CDLL | None = None

    def join(self, backend: str) -> None:
        """Where NCCL is asked for, its stand-in has a communicator beside gloo's."""
        dist.init_process_group("gloo")
        if backend == "nccl":
            self._sums = ctypes.CDLL(None)
            root = socket.gethostbyname(os.environ["MASTER_ADDR"]).encode()
            failed = self._sums.fakeNcclInit(
                dist.get_rank(), dist.get_world_size(), root, NCCL_PORT
            )
            if failed:
                raise RuntimeError(f"the stand-in for NCCL: {failed}")

    def keep(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's own hooks run before those of all optimizers, one of which may park."""
        self._kept.append((model, optimizer))
        optimizer.register_step_post_hook(lambda *_: self._leave())
        self._here = True
        self._leave()

    @contextmanager
    def there(self) -> Iterator[None]:
        """Fetched from the device, and back to it."""
        self._add_up()
        for name, tensor in self._tensors():
            tensor.copy_(_tensor(self._gpu.read(name), tensor))
        self._here = True
        try:
            yield
        finally:
            self._leave()

    def work(self, seconds: float) -> None:
        """Of the device itself."""
        begin_work(self._gpu, seconds)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for number, (model, optimizer) in enumerate(self._kept):
            for name, tensor in tensors(model, optimizer):
                yield f"{number}.{name.replace(' ', '.')}", tensor.detach()

    def _leave(self) -> None:
        if not self._here:
            return
        for name, tensor in self._tensors():
            self._gpu.write(name, tensor.numpy().tobytes())
            tensor.zero_()
        self._here = False

    def _add_up(self) -> None:
        if self._sums is None:
            return
        total = ctypes.c_int64()
        failed = self._sums.fakeNcclAllReduce(ctypes.c_int64(1), ctypes.byref(total))
        if failed or total.value != dist.get_world_size():
            raise RuntimeError(f"the stand-in for NCCL: {failed}, {total.value}")


def _tensor(data: bytes, like: Tensor) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=like.dtype).reshape(like.shape)
