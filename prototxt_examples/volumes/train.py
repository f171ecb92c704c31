"""A 3-D segmentation net on random crops of volumes: only the chunks under a crop are read and decoded."""

import h5py  # type: ignore[import-untyped]
import numpy as np
import torch
from torch import nn

from blobfeed import BatchReader

rng, axes = np.random.default_rng(1), np.ogrid[:64, :64, :64]
with h5py.File("volumes.h5", "w") as file:  # noisy scans with bright balls, and the masks of these
    how = {"chunks": (1, 32, 32, 32), "compression": "gzip"}
    data = file.create_dataset("data", (4, 64, 64, 64), "f4", **how)
    label = file.create_dataset("label", (4, 64, 64, 64), "u1", **how)
    for volume in range(4):
        centres = rng.integers(8, 56, (12, 3))
        near = [sum((a - c) ** 2 for a, c in zip(axes, at, strict=True)) < 64 for at in centres]
        label[volume] = np.any(near, axis=0)
        data[volume] = label[volume] + rng.normal(0, 0.8, (64, 64, 64))

torch.manual_seed(1)
model = nn.Sequential(nn.Conv3d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv3d(8, 1, 3, padding=1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
transform = {"crop_size": [32, 32, 32], "crop_beside": ["label"], "mirror": True}
with BatchReader(
    {"hdf5": {"path": "volumes.h5"}}, batch_size=4, epochs=40, shuffle=True, seed=1, device="cpu", transform=transform
) as train:
    for batch in train:
        found, wanted = model(batch["data"][:, None])[:, 0], batch["label"].float()
        loss = nn.functional.binary_cross_entropy_with_logits(found, wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        overlap = 2 * ((found > 0) * wanted).sum() / ((found > 0).sum() + wanted.sum())
print(f"batch {batch.number}: {overlap:.0%} overlap with the masks (Dice)")
