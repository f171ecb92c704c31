"""What paths hold, and the samples that are read from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ...workers.base.errors import BlobfeedError
from ...workers.base.source import Source
from ...workers.base.specs import AnyArray
from ...workers.loading.worker import read_one
from ...workers.sources import KINDS, open_source

COLOR_ATTRIBUTE = "color"
"""Of a packed file: the order of the channels, if it is known."""


@dataclass(frozen=True)
class Found:
    """What paths hold: the declaration for `source:`, the tops to name beside it (None: by default), and remarks.

    `noted_bgr`: whether a packed file says so of its colours. `transform`: what brings pictures to one size.
    """

    declared: Mapping[str, Any]
    tops: tuple[str, ...] | None = None
    remarks: tuple[str, ...] = ()
    noted_bgr: bool = False
    transform: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return next(iter(self.declared))

    @property
    def is_bgr(self) -> bool:
        """Whether colours come in the order of OpenCV and Caffe."""
        return self.noted_bgr or _gives_bgr(self.declared)

    def open(self) -> Source:
        return open_source(self.declared, tops=self.tops, base_dir=Path.cwd())


def sample_of(source: Source, index: int) -> dict[str, AnyArray]:
    """One sample, by top; raises what the source does, a BlobfeedError for one that cannot be read."""
    return {top: np.asarray(value) for top, value in read_one(source, index).items()}


def samples_of(source: Source, indices: Iterable[int], bad: dict[int, str]) -> Iterator[dict[str, AnyArray]]:
    """One by one those samples of `source` that can be read; what the others say goes into `bad`, by index."""
    for index in indices:
        try:
            yield sample_of(source, index)
        except BlobfeedError as error:
            bad[int(index)] = str(error)  # the error itself would keep the sample's bytes, by its traceback


def in_yaml(value: object) -> str:
    """`value` on one line, as it stands in a prototxt's param_str."""
    # Letters as they are: an escape needs quotation marks, which end a param_str.
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
    return text.strip().removesuffix("\n...")


def _gives_bgr(declared: Mapping[str, Any]) -> bool:
    """Whether pictures come as OpenCV decodes them; `declared` can be opened."""
    ((kind, options),) = declared.items()
    if kind == "concat":
        return all(map(_gives_bgr, options))
    if isinstance(options, Mapping) and options.get("color", "bgr") != "bgr":
        return False
    return kind in KINDS and KINDS[kind].gives_bgr


def one_or_all(paths: Sequence[Path]) -> str | list[str]:
    """What the option `path` is given."""
    return str(paths[0]) if len(paths) == 1 else [str(path) for path in paths]
