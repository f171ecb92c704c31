"""Chooses the delivery for blobs: into host memory, onto a CUDA device, or as a view of the slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...workers.base import ParameterError
from ...workers.pipeline import Pipeline
from .delivery import Blob, Delivery, HostDelivery, as_numpy, is_as_stored
from .tops import Top, as_in_slots, loaders_conversions

if TYPE_CHECKING:
    from .delivery import Memory


def make_delivery(pipeline: Pipeline, tops: Sequence[Top], blobs: Sequence[Blob]) -> Delivery:
    """Return the delivery for blobs like these, which must have been reshaped before: `data` shows their device."""
    devices = {_device_of(blob.data) for blob in blobs}
    view = pipeline.parameters.delivery == "view"
    if view and devices != {"cpu"}:
        given = " and ".join(sorted(f"tensors on {device}" if device else "NumPy arrays" for device in devices))
        raise ParameterError(
            f"parameter 'delivery' is 'view': expected tops that are torch tensors on the CPU, got {given}; "
            "use delivery: copy"
        )
    if len(devices) == 1 and (device := next(iter(devices))).startswith("cuda"):
        from .cuda_delivery import CudaDelivery
        from .cuda_device import CudaDevice

        return CudaDelivery(pipeline, tops, CudaDevice(device))
    if not view:
        return HostDelivery(pipeline, tops)
    import torch

    if conversions := loaders_conversions(tops, [as_numpy(blob.data).dtype for blob in blobs]):
        pipeline.go_to(pipeline.plan.converted(conversions).begin())
        tops = as_in_slots(tops, pipeline.plan.conversions)
    shows = [_can_be_shown(top, blob) for top, blob in zip(tops, blobs, strict=True)]
    return HostDelivery(pipeline, tops, loans=pipeline.plan.loans, shows=shows, shown_as=torch.from_numpy)


def _can_be_shown(top: Top, blob: Blob) -> bool:
    """Return true if a batch in its slot has the values and type of `blob`; raises ParameterError."""
    if not is_as_stored(top) or top.dtype != as_numpy(blob.data).dtype:
        return False
    if not hasattr(blob, "adopt"):
        raise ParameterError(
            f"parameter 'delivery' is 'view', and the blob of top {top.name!r} ({type(blob).__name__}) has no "
            "adopt(tensor) to be shown other memory with: use delivery: copy"
        )
    return True


def _device_of(data: Memory) -> str:
    """Return "" for a NumPy array, else torch's name for the device: "cpu", "cuda:1"."""
    return "" if isinstance(data, np.ndarray) else str(data.device)
