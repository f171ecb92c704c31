"""A program that has an HDF5 library of its own, as `caffe train` does, reads HDF5 files through a layer.

The layer's module imports h5py itself.
"""

from __future__ import annotations

import ctypes.util
import subprocess
from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest

from tests.support.part import some_of
from tests.support.standin_train import compile_caffe_train, environment

_MODULE = """
from blobfeed.layers import MultiProcessInputLayer

import h5py

class Prints(MultiProcessInputLayer):
    def setup(self, bottom, top):
        with h5py.File("own.h5", "w") as file:
            file["data"] = [1.0]
        super().setup(bottom, top)

    def forward(self, bottom, top):
        super().forward(bottom, top)
        print("labels", *top[1].data.tolist(), "sum", float(top[0].data.sum()), flush=True)
"""


def _linked_to_the_system_s_library() -> tuple[str, ...]:
    library = ctypes.util.find_library("hdf5_serial") or ctypes.util.find_library("hdf5")
    if library is None:
        pytest.skip("needs an HDF5 library of the system, such as Debian's libhdf5-103")
    return "-DUSES_HDF5", "-Wl,--no-as-needed", f"-l:{library}"


@pytest.fixture(scope="module", params=["the system's library", "a library that fails"])
def program(request: pytest.FixtureRequest) -> Path:
    own = ("-DHAS_HDF5", "-rdynamic")
    flags = own if request.param == "a library that fails" else _linked_to_the_system_s_library()
    return compile_caffe_train(*flags)


@pytest.mark.parametrize(
    ("kind", "compression"),
    some_of([("hdf5", "lzf"), ("hdf5", None), ("hdf5", "gzip"), ("hdf5", "lz4"), ("hdf5_samples", None)], 4),
)
def test_a_layer_reads_hdf5(program: Path, tmp_path: Path, kind: str, compression: str | None) -> None:
    if compression == "lz4":
        compression = pytest.importorskip("hdf5plugin").LZ4()
    data = np.arange(8 * 64, dtype=np.float32).reshape(8, 64)
    with h5py.File(tmp_path / "train.h5", "w") as file:
        if kind == "hdf5":
            file.create_dataset("data", data=data, chunks=(2, 64), compression=compression)
            file["label"] = np.arange(8)
        else:
            for number, row in enumerate(data):
                file[f"sample_{number}"] = row
                file[f"sample_{number}"].attrs["label"] = number
    (tmp_path / "my_layers.py").write_text(_MODULE)
    param_str = (
        f"{{source: {{{kind}: {{path: {tmp_path}/train.h5}}}}, tops: [data, label], batch_size: 4, num_loaders: 1}}"
    )
    command = [str(program), "my_layers", "Prints", param_str, "2", "2", "0"]
    done = subprocess.run(
        command, check=False, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert (done.returncode, done.stderr) == (0, "")
    batches = [line for line in done.stdout.splitlines() if line.startswith("labels")]
    assert batches == [
        f"labels 0.0 1.0 2.0 3.0 sum {float(data[:4].sum())}",
        f"labels 4.0 5.0 6.0 7.0 sum {float(data[4:].sum())}",
    ]
