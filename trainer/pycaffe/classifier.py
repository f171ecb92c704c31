"""Images in, probabilities of classes out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from ..layer_types import Array
from ..prototxt import Phase
from . import io
from .net import Net


class Classifier(Net):
    """A net that classifies images: its one input is an image, its first output a row of probabilities.

    image_dims: the height and width that images are resized to, before a part as large as the input is cut out.
    mean, input_scale, raw_scale, channel_swap: for the steps of Transformer that have these names.
    """

    def __init__(
        self,
        model_file: str | Path,
        pretrained_file: str | Path,
        image_dims: Sequence[int] | None = None,
        mean: ArrayLike | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
    ) -> None:
        super().__init__(model_file, pretrained_file, int(Phase.TEST))
        name = self._input = self.inputs[0]
        self.crop_dims = self.blobs[name].shape[2:]
        self.transformer = io.Transformer({name: self.blobs[name].shape})
        self.transformer.set_transpose(name, (2, 0, 1))
        steps = {"mean": mean, "input_scale": input_scale, "raw_scale": raw_scale, "channel_swap": channel_swap}
        for step, value in steps.items():
            if value is not None:
                getattr(self.transformer, f"set_{step}")(name, value)
        self.image_dims = tuple(image_dims) if image_dims is not None else self.crop_dims

    def predict(self, inputs: Sequence[ArrayLike], oversample: bool = True) -> Array:
        """A row of probabilities for each image (height, width, channels).

        With `oversample`, the mean over ten crops of the image, else those of its center.
        """
        images = [io.resize_image(image, self.image_dims) for image in inputs]
        crops = io.oversample(images, self.crop_dims)
        chosen = crops if oversample else crops[4::10]
        rows = np.stack([self.transformer.preprocess(self._input, crop) for crop in chosen])
        found = self.forward_all(**{self._input: rows})[self.outputs[0]]
        means: Array = found.reshape(len(images), -1, *found.shape[1:]).mean(1)
        return means
