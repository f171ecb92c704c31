"""What becomes of a batch's values on the device: type, mean and scale, by the same arithmetic as on the CPU."""

from __future__ import annotations

import torch

from .conversion import Conversion


class DeviceConversion:
    """A top's conversion with its mean on the device."""

    def __init__(self, conversion: Conversion, device: torch.device) -> None:
        self._scale = conversion.scale
        self._mean = None if conversion.mean is None else torch.from_numpy(conversion.mean).to(device)
        self._both = None if conversion.image is None else torch.from_numpy(conversion.image.both).to(device)

    def put(self, values: torch.Tensor, out: torch.Tensor, corners: torch.Tensor | None) -> None:
        """`(values - mean) * scale` into `out`, on the current stream.

        `corners`: shape (rows, 3), as MeanImage.corners gives them, where each row has its own part of the mean.
        """
        with torch.no_grad():
            if (mean := self._mean_for(values, corners)) is not None:
                torch.sub(values, mean, out=out)
                if self._scale != 1.0:
                    out.mul_(self._scale)
            elif self._scale != 1.0:
                torch.mul(values, self._scale, out=out)
            else:
                out.copy_(values)

    def _mean_for(self, values: torch.Tensor, corners: torch.Tensor | None) -> torch.Tensor | None:
        if self._both is None or corners is None:
            return self._mean
        channels, height, width = values.shape[1:]
        image, top, left = corners[:, :, None, None, None].unbind(1)
        y = top + torch.arange(height, device=values.device)[:, None]
        x = left + torch.arange(width, device=values.device)
        return self._both[image, torch.arange(channels, device=values.device)[:, None, None], y, x]
