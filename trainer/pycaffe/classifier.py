"""Images in, probabilities of classes out: for whole images, and for windows of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...workers.base.errors import ParameterError
from ..layer_types.blobs import Array
from ..prototxt.schema import Phase
from . import io
from .net import Net


class ImageNet(Net):
    """A net with one input, which is an image, and one output.

    mean, input_scale, raw_scale, channel_swap: for the steps of Transformer that have these names.
    """

    def __init__(
        self,
        model_file: str | Path,
        pretrained_file: str | Path,
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

    def _row(self, image: Array) -> Array:
        return self.transformer.preprocess(self._input, image)

    def _predict(self, rows: Sequence[Array]) -> Array:
        return self.forward_all(**{self._input: np.stack(rows)})[self.outputs[0]]


class Classifier(ImageNet):
    """Classifies whole images.

    image_dims: the height and width that images are resized to, before a part as large as the input is cut out.
    """

    def __init__(
        self,
        model_file: str | Path,
        pretrained_file: str | Path,
        image_dims: Sequence[int] | None = None,
        *steps: Any,
        **named_steps: Any,
    ) -> None:
        super().__init__(model_file, pretrained_file, *steps, **named_steps)
        self.image_dims = tuple(image_dims) if image_dims is not None else self.crop_dims

    def predict(self, inputs: Sequence[ArrayLike], oversample: bool = True) -> Array:
        """A row of probabilities for each image (height, width, channels).

        With `oversample`, the mean over ten crops of the image, else those of its center.
        """
        images = [io.resize_image(image, self.image_dims) for image in inputs]
        crops = io.oversample(images, self.crop_dims)
        found = self._predict([self._row(crop) for crop in (crops if oversample else crops[4::10])])
        means: Array = found.reshape(len(images), -1, *found.shape[1:]).mean(1)
        return means


class Detector(ImageNet):
    """Classifies windows of images, as R-CNN does with proposed regions.

    context_pad: how many of the input's pixels, on each side, show what lies around the window. What lies beyond the
    image is 0 there after the mean was subtracted, as in the WindowData layer that trains such nets.
    """

    def __init__(self, *files_and_steps: Any, context_pad: int | None = None, **named_steps: Any) -> None:
        super().__init__(*files_and_steps, **named_steps)
        self._context = context_pad or 0
        height, width = self.crop_dims
        if self._context and not (height == width > 2 * self._context):
            raise ParameterError(
                f"context_pad is {context_pad} and the input {height}×{width}: expected a square input that is larger "
                "than the pad on both sides"
            )

    def detect_windows(self, images_windows: Iterable[tuple[str | Path, ArrayLike]]) -> list[dict[str, Any]]:
        """For each window of each image file: its `filename`, `window` and `prediction`, a row of probabilities.

        A window is (top, left, bottom, right) in pixels; bottom and right belong to it only with a context_pad. Raises
        ParameterError for one that does not lie in its image.
        """
        found = []
        for filename, windows in images_windows:
            image = io.load_image(filename)
            boxes = np.asarray(windows, float).round().astype(int).reshape(-1, 4)
            for box in boxes:
                top, left, bottom, right = box
                if not (0 <= top < bottom <= image.shape[0] and 0 <= left < right <= image.shape[1]):
                    raise ParameterError(
                        f"{filename}: the window {box.tolist()} (top, left, bottom, right) does not lie in the image "
                        f"of {image.shape[0]}×{image.shape[1]} pixels"
                    )
            if len(boxes):  # image by image: the windows of many would fill the memory
                rows = self._predict([self._cut(image, box.tolist()) for box in boxes])
                found += [
                    {"filename": filename, "window": box, "prediction": row}
                    for box, row in zip(boxes, rows, strict=True)
                ]
        return found

    def _cut(self, image: Array, box: Sequence[int]) -> Array:
        top, left, bottom, right = box
        if not self._context:
            return self._row(image[top:bottom, left:right])
        from ...workers.sources.images.windows import WindowOptions, expanded

        options = WindowOptions(path="", crop_size=self.crop_dims[0], context_pad=self._context)
        last = image.shape[0] - 1, image.shape[1] - 1
        shown = left, top, min(right, last[1]), min(bottom, last[0])
        (x1, y1, x2, y2), (above, before, height, width) = expanded(shown, image.shape[:2], options, mirrored=False)
        part = np.s_[above : above + height, before : before + width]
        framed = np.zeros((*self.crop_dims, image.shape[2]), np.float32)
        framed[part] = io.resize_image(image[y1 : y2 + 1, x1 : x2 + 1], (height, width))
        row = np.zeros(self.blobs[self._input].shape[1:], np.float32)
        row[:, *part] = self._row(framed)[:, *part]
        return row
