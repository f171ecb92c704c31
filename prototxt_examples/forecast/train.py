"""A forecast net on fields of a netCDF-4 file: patches in space and time, labels six steps later."""

import h5py  # type: ignore[import-untyped]
import numpy as np
import torch
from torch import nn

from blobfeed import BatchReader

t, y, x = np.ogrid[:120, :64, :64]
with h5py.File("fields.nc", "w") as file:  # waves that travel; netCDF4 and xarray write the same form
    waves = np.sin((x + t) / 5) * np.cos(y / 7) + np.sin((x - 2 * t) / 9)
    for name, values in (("t2m", waves), ("tp", waves**2)):
        field = file.create_dataset(name, data=values.astype("f4"), chunks=(24, 32, 32), compression="gzip")
        for axis, (dimension, extent) in enumerate(zip(("time", "lat", "lon"), values.shape, strict=True)):
            if dimension not in file:
                file.create_dataset(dimension, data=np.arange(extent)).make_scale(dimension)
            field.dims[axis].attach_scale(file[dimension])

patch = {"size": {"time": 4, "lat": 32, "lon": 32}, "stride": {"time": 2, "lat": 16, "lon": 16}}
source = {"hdf5": {"path": "fields.nc", "patch": {**patch, "shift": {"time": 6}}}}
torch.manual_seed(1)
model = nn.Sequential(nn.Conv2d(4, 24, 5, padding=2), nn.ReLU(), nn.Conv2d(24, 4, 3, padding=1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with BatchReader(source, tops=["t2m", "tp"], batch_size=32, shuffle="chunk", seed=1, epochs=3, device="cpu") as train:
    for batch in train:
        loss = nn.functional.mse_loss(model(batch["t2m"]), batch["tp"])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
print(f"batch {batch.number}: mean squared error {loss:.3f}, and {batch['tp'].var():.3f} without a forecast")
