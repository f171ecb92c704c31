"""The input layer of py-faster-rcnn: pictures at the size that the net wants, and the boxes of what is on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray

from blobfeed import MultiProcessInputLayer

Arrays = Mapping[str, NDArray[Any]]

_TRAIN = 0


class RegionsLayer(MultiProcessInputLayer):
    """Tops `data` (pictures, 3, height, width), `im_info` (pictures, 3) and `gt_boxes` (boxes, 5).

    A picture's shorter side gets `target_size` pixels, unless its longer one would exceed `max_size`; in phase TRAIN
    half of the pictures, chosen at random, are mirrored. A row of `im_info` is height, width and scale; one of
    `gt_boxes` is left, top, right and bottom in pixels of `data`, and the class.
    """

    extra_parameters: ClassVar[Mapping[str, object]] = {"target_size": 600, "max_size": 1000}

    def decode(self, sample: Arrays, rng: np.random.Generator) -> Arrays:
        picture = sample["data"].transpose(1, 2, 0)
        boxes = sample["label"].reshape(-1, 5).astype(np.float32)
        boxes = boxes[boxes[:, 4] >= 0]
        if self.phase == _TRAIN and rng.random() < 0.5:
            picture = picture[:, ::-1]
            boxes[:, [0, 2]] = picture.shape[1] - 1 - boxes[:, [2, 0]]
        shorter, longer = sorted(picture.shape[:2])
        scale = min(self.extra["target_size"] / shorter, self.extra["max_size"] / longer)
        resized = cv2.resize(np.ascontiguousarray(picture), None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
        boxes[:, :4] *= scale
        return {
            "data": resized.transpose(2, 0, 1),
            "im_info": np.array([*resized.shape[:2], scale], np.float32),
            "gt_boxes": boxes,
        }
