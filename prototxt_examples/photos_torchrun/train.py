"""JPEGs in a folder for each class, trained on by several processes under torchrun; random parts of random sizes."""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from blobfeed import BatchReader

SIZE, EPOCHS = 64, 4


def photos(path: str, **how: Any) -> BatchReader:
    transform = {"random_resized_crop": SIZE, "mirror": True, "mean_value": 128, "scale": 1 / 64}
    return BatchReader({"image_list": path}, transform=transform, batch_size=16, device="cpu", **how)


def main(path: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    classes = (Path(path).parent / "classes.txt").read_text().splitlines()
    features = nn.Sequential(nn.Conv2d(3, 8, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = nn.Sequential(features, nn.Linear(8, len(classes)))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    # This rank's part of each epoch. By "wrap" all ranks have as many batches, since each step waits for the others.
    with photos(path, shuffle=True, seed=1, last_batch="wrap") as train:
        for _ in range(EPOCHS):
            for batch in train:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(batch["data"]), batch["label"].long())
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    if dist.get_rank() == 0:
        with photos(path, train=False, rank=0, world_size=1) as valid, torch.no_grad():
            right = sum(int((network(batch["data"]).argmax(1) == batch["label"]).sum()) for batch in valid)
            print(f"{right / valid.samples:.1%} of the photos right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
