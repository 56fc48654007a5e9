"""A PyTorch DataLoader with two persistent workers, for ever: loader.py OUT.

Every batch is checked against what it must be; notes how many were right, or `WRONG`.
"""

import sys

import torch
from torch.utils.data import DataLoader, Dataset

SIZE, BATCH = 512, 16


class Squares(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1024,), float(index * index))


def main(path: str) -> None:
    loader = DataLoader(Squares(), batch_size=BATCH, num_workers=2, persistent_workers=True)
    count = 0
    with open(path, "a") as out:
        while True:
            for number, batch in enumerate(loader):
                wanted = torch.tensor([float((number * BATCH + i) ** 2) for i in range(BATCH)])
                right = bool((batch == wanted[:, None]).all())
                count += 1
                out.write(f"{count}\n" if right else f"WRONG at {count}\n")
                out.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
