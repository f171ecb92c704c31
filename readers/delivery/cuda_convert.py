"""Converts a batch's values on the device: type, mean and scale, by the same arithmetic as on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ...workers.api import AnyArray
from ...workers.loading import Conversion


class DeviceConversion:
    """A top's conversion with its mean on the device. `constant`: brings an array there."""

    def __init__(self, conversion: Conversion, constant: Callable[[AnyArray], torch.Tensor]) -> None:
        scale = conversion.scale
        self._scale = constant(scale) if isinstance(scale, np.ndarray) else scale
        self._scales = conversion.scales
        self._mean = None if conversion.mean is None else constant(conversion.mean)
        self._both = None if conversion.image is None else constant(conversion.image.both)

    def put(self, values: torch.Tensor, out: torch.Tensor, corners: torch.Tensor | None) -> None:
        """`(values - mean) * scale` into `out`, on the current stream.

        `corners`: shape (rows, 3), as MeanImage.corners gives them, where each row has its own part of the mean.
        """
        with torch.no_grad():
            mean = self._mean_for(values, corners)
            # Step by step, as in `Conversion`: torch.mul of a float16 tensor would round to float16 first.
            narrow = out.element_size() < 4 and (mean is not None or self._scales)
            work = torch.empty_like(out, dtype=torch.float32) if narrow else out
            work.copy_(values)
            if mean is not None:
                work.sub_(mean)
            if self._scales:
                work.mul_(self._scale)
            if narrow:
                out.copy_(work)

    def _mean_for(self, values: torch.Tensor, corners: torch.Tensor | None) -> torch.Tensor | None:
        if self._both is None or corners is None:
            return self._mean
        channels, height, width = values.shape[1:]
        image, top, left = corners[:, :, None, None, None].unbind(1)
        y = top + torch.arange(height, device=values.device)[:, None]
        x = left + torch.arange(width, device=values.device)
        return self._both[image, torch.arange(channels, device=values.device)[:, None, None], y, x]
