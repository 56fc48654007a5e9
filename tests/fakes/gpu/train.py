"""`bench.gpu.train` over a fake device: `train.py PLACE DEVICE` and its options."""

from __future__ import annotations

import sys

from bench.gpu.train import main
from tests.fakes.gpu.device import Gpu
from tests.fakes.gpu.torch_place import FakePlace

if __name__ == "__main__":
    place, device = sys.argv[1:3]
    del sys.argv[1:3]
    main(FakePlace(Gpu(place, device)))
