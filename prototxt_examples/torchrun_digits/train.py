"""DistributedDataParallel on the digits: each process reads its own part of every epoch.

Run by torchrun; the readers learn rank and world size from the process group.
"""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from blobfeed import BatchReader

DIGITS = Path(__file__).parent.parent / "digits"
EPOCHS = int(os.environ.get("EPOCHS", "10"))


def digits(name: str, **how: Any) -> BatchReader:
    source = {"hdf5": {"path": f"digits_{name}.h5"}}
    settings: dict[str, Any] = {"batch_size": 32, "transform": {"scale": 1 / 16}}
    return BatchReader(source, base_dir=DIGITS, device="cpu", num_loaders=1, **settings, **how)


def check_union(seen: list[int], samples: int) -> None:
    """Together the ranks have seen every sample of the epoch, each once."""
    parts: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, seen)
    everything = sorted(index for part in parts for index in part)
    if everything != list(range(samples)):
        raise RuntimeError(f"the ranks saw {len(everything)} samples, {len(set(everything))} different, of {samples}")


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    with digits("train", shuffle=True, seed=1) as train:
        for _ in range(EPOCHS):
            seen: list[int] = []
            for batch in train:
                loss = nn.functional.cross_entropy(model(batch["data"]), batch["label"].long())
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                seen += batch.indices.tolist()
            check_union(seen, train.samples)
    if dist.get_rank() == 0:
        with digits("test", rank=0, world_size=1) as test:
            right = sum(int((network(batch["data"]).argmax(1) == batch["label"]).sum()) for batch in test)
            print(f"{dist.get_world_size()} ranks, {EPOCHS} epochs, each sample once in each")
            print(f"{right / test.samples:.1%} of {test.samples} test digits right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
