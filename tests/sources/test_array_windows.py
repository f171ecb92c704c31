"""Windows over arrays: each is a slice of the steps as NumPy has it, and none crosses a boundary."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.sources import open_source
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import SourceError
from tests.sources.contract.kinds import Part, write_hdf5, write_npy, write_zarr
from tests.support.part import examples
from tests.support.stored import assert_rows, in_loader


def _hdf5_samples(folder: Path, parts: Sequence[Part]) -> Any:
    """Each sequence is a sample, every third one in chunks."""
    for number, part in enumerate(parts):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            ends = part["ends"].tolist()
            for nth, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
                for top in ("data", "label") if begin < end else ():
                    layout = {} if nth % 3 else {"chunks": True, "compression": "gzip"}
                    file.create_dataset(f"{nth}/{top}", data=part[top][begin:end], **layout)
    return {"hdf5_samples": {"path": "*.h5", "datasets": ["data", "label"]}}


def _arrays(folder: Path, parts: Sequence[Part]) -> Any:
    """As one file: the sequences of all."""
    lengths = np.cumsum([0, *(len(part["data"]) for part in parts)])
    ends = np.concatenate([part["ends"] + start for part, start in zip(parts, lengths, strict=False)])
    return {
        "arrays": {top: np.concatenate([part[top] for part in parts]) for top in ("data", "label")} | {"ends": ends}
    }


KINDS: dict[str, Callable[[Path, Sequence[Part]], Any]] = {
    "hdf5": write_hdf5,
    "hdf5 chunks": partial(write_hdf5, fillvalue=0),
    "hdf5 gzip": partial(write_hdf5, compression="gzip"),
    "hdf5_samples": _hdf5_samples,
    "npy": write_npy,
    "zarr": write_zarr,
    "arrays": _arrays,
}


@st.composite
def some_parts(draw: st.DrawFn) -> list[Part]:
    """Up to three files of up to 20 steps, `data` and `label`, in sequences of any length, which end at `ends`."""
    row = draw(st.sampled_from([(), (3,), (2, 600)]))
    dtype = draw(st.sampled_from(["u1", "f4", ">i2"]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    parts: list[Part] = []
    for steps in draw(st.lists(st.integers(1, 20), min_size=1, max_size=3)):
        ends = sorted({*draw(st.lists(st.integers(0, steps), max_size=4)), steps})
        data = rng.integers(0, 200, (steps, *row)).astype(dtype)
        parts.append({"data": data, "label": rng.integers(0, 99, steps), "ends": np.array(ends)})
    return parts


@pytest.mark.parametrize("kind", KINDS)
@examples(25)
@given(data=st.data())
def test_windows_are_slices_of_the_sequences(kind: str, data: st.DataObject) -> None:
    parts = data.draw(some_parts())
    length, stride = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    bounded = kind in ("arrays", "hdf5_samples") or data.draw(st.booleans())
    step = data.draw(st.sampled_from(["first", "middle", "last", None]))
    slices: list[tuple[Part, int]] = []
    for part in parts:
        ends = part["ends"].tolist() if bounded else [len(part["data"])]
        for begin, end in zip([0, *ends[:-1]], ends, strict=True):
            slices += [(part, first) for first in range(begin, end - length + 1, stride)]
    taken = {"first": 0, "middle": length // 2, "last": length - 1}
    with tempfile.TemporaryDirectory() as folder:
        ((name, options),) = KINDS[kind](Path(folder), parts).items()
        window = {
            "length": length,
            "stride": stride,
            "boundaries": bounded and kind != "hdf5_samples" and "ends",
            "labels": step,
        }
        spec = {name: {**options, "window": {option: value for option, value in window.items() if value}}}
        tops = data.draw(st.permutations(["data", "label"]))
        if not slices:
            with pytest.raises(SourceError, match=rf"\b{length} "):
                open_source(spec, tops=tops, base_dir=Path(folder))
            return
        windows = {top: np.stack([part[top][first : first + length] for part, first in slices]) for top in tops}
        expected = {top: windows[top][:, taken[step]] if step and top != tops[0] else windows[top] for top in tops}
        with (
            closing(open_source(spec, tops=tops, base_dir=Path(folder))) as source,
            closing(in_loader(source)) as loader,
        ):
            assert len(loader) == len(slices)
            for each in (source, loader):
                indices = data.draw(st.lists(st.integers(0, len(slices) - 1), max_size=12))
                each.will_need(np.array(indices, np.int64))
                assert_rows(each, indices, expected)


def test_a_hundred_million_windows_take_no_memory(tmp_path: Path) -> None:
    steps = 100_000_127
    path = tmp_path / "sparse.npy"
    data = np.lib.format.open_memmap(path, "w+", np.uint8, (steps,))
    data[77_777_777:77_777_905] = np.arange(128)
    data.flush()
    spec = {"npy": {"data": str(path), "window": {"length": 128}}}
    with closing(open_source(spec, tops=None, base_dir=tmp_path)) as source:
        assert len(source) == 100_000_000
        assert len(pickle.dumps(source)) < 5_000
        assert source.where(99_999_999).endswith("sparse.npy[99999999:100000127]")
        assert_rows(source, [0], {"data": np.zeros((1, 128), np.uint8)})
        out = {"data": np.empty((1, 128), np.uint8)}
        source.read(np.array([77_777_777]), out)
        assert out["data"][0].tolist() == list(range(128))
