"""HDF5 with a data set per sample: samples of varying shape keep it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.workers.base.specs import ArraySpec

from tests.support.stored import BY_MAP, BY_PREADV, bytes_read, in_loader, opened, patterns, some_array
from tests.workers.sources.hdf5_samples.archives import KIND, SAMPLES, archive, assert_ragged


@pytest.mark.parametrize("way", [BY_MAP, BY_PREADV])
@pytest.mark.parametrize("dtype", ["<f4", ">f8"])
@pytest.mark.parametrize("options", [{}, {"chunks": True, "compression": "gzip"}])
def test_samples_of_varying_shape_keep_it(options: dict[str, Any], dtype: str, way: str, tmp_path: Path) -> None:
    samples = [some_array((1 + 2 * (n % 4), 5 - n % 3), dtype, n) for n in range(SAMPLES)]
    archive(tmp_path / "a.h5", samples, **options)
    source = in_loader(opened(KIND, tmp_path, path="a.h5", labels=["label"]))
    assert source.specs["data"] == ArraySpec((7, 5), np.dtype(dtype).newbyteorder("="), varies=True)
    with bytes_read(way):
        for indices in patterns(SAMPLES):
            source.will_need(np.array(indices, np.int64))
            assert_ragged(source, indices, samples)
    source.close()


def test_an_empty_sample_among_others_stays_empty(tmp_path: Path) -> None:
    samples = [np.zeros((0, 2)), np.ones((3, 2))]
    archive(tmp_path / "a.h5", samples)
    source = in_loader(opened(KIND, tmp_path, path="a.h5"))
    assert_ragged(source, [1, 0, 0], samples)
    source.close()
