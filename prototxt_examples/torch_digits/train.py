"""A small torch model on the digits, in a script as for torch's own DataLoader: one import is another."""

from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import torch
from torch import nn
from torch.utils.data import Dataset

from blobfeed import DataLoader

DIGITS = Path(__file__).parent.parent / "digits"


class Digits(Dataset[Any]):
    def __init__(self, name: str) -> None:
        with h5py.File(DIGITS / f"digits_{name}.h5") as file:
            self.images = torch.from_numpy(file["data"][:])
            self.labels = torch.from_numpy(file["label"][:]).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index] / 16, self.labels[index]


torch.manual_seed(1)
model = nn.Sequential(
    *(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48 * 4 * 4, 10)),
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

train = DataLoader(Digits("train"), batch_size=64, shuffle=True, num_workers=2)
test = DataLoader(Digits("test"), batch_size=64)

for epoch in range(1, 11):
    for images, labels in train:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in test)
    print(f"epoch {epoch}: {right / len(test.dataset):.1%} of {len(test.dataset)} test digits right", flush=True)  # type: ignore[arg-type]
