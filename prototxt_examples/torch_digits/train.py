"""A small torch model on the digits, fed by a BatchReader."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from blobfeed import BatchReader

DIGITS = Path(__file__).parent.parent / "digits"


def digits(name: str, **how: Any) -> BatchReader:
    source = {"hdf5": {"path": f"digits_{name}.h5"}}
    scale = {"scale": 1 / 16}
    return BatchReader(source, base_dir=DIGITS, batch_size=64, device="cpu", transform=scale, **how)


torch.manual_seed(1)
model = nn.Sequential(
    *(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48 * 4 * 4, 10)),
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

with digits("train", shuffle=True, seed=1) as train, digits("test") as test:
    for epoch in range(1, 11):
        for batch in train:
            loss = nn.functional.cross_entropy(model(batch["data"]), batch["label"].long())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        right = sum(int((model(batch["data"]).argmax(1) == batch["label"]).sum()) for batch in test)
        print(f"epoch {epoch}: {right / test.samples:.1%} of {test.samples} test digits right", flush=True)
