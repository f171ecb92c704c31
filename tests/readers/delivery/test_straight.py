"""In the trainer's process bytes are converted on their way from the file's map to the blob: no slot in between."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.readers.delivery import HostDelivery, make_tops
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import AnyArray, check_parameters
from blobfeed.workers.loading import Conversion, conversion

from blobfeed import ParameterError, SampleError

_SAMPLES, _SHAPE, _BATCH = 150, (3, 64, 64), 60


def _arrays() -> tuple[AnyArray, AnyArray]:
    rng = np.random.default_rng(7)
    return rng.integers(0, 256, (_SAMPLES, *_SHAPE), np.uint8), np.arange(_SAMPLES, dtype=np.int64)


def _write(folder: Path, form: str) -> dict[str, Any]:
    data, labels = _arrays()
    if form == "npy":
        np.save(folder / "data.npy", data)
        np.save(folder / "label.npy", labels)
        return {"npy": {"data": str(folder / "data.npy"), "label": str(folder / "label.npy")}}
    files = [slice(0, 40), slice(40, 90), slice(90, None)] if form == "files" else [slice(None)]
    for number, part in enumerate(files):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file.create_dataset("data", data=data[part], chunks=(8, *_SHAPE) if form == "chunks" else None)
            file["label"] = labels[part]
    return {"hdf5": {"path": [str(folder / f"{number}.h5") for number in range(len(files))]}}


@dataclass
class Blob:
    data: AnyArray


class _Delivered:
    def __init__(self, source: dict[str, Any], **parameters: Any) -> None:
        chosen = {"batch_size": _BATCH, "num_loaders": 0, "shuffle": True, "epochs": 1, "last_batch": "partial"}
        checked = check_parameters({"source": source, **chosen, **parameters})
        self.pipeline = open_pipeline(checked)
        self.tops = make_tops(self.pipeline.specs, checked, Path.cwd())
        self.delivery = HostDelivery(self.pipeline, self.tops)

    def blobs(self) -> list[Blob]:
        return [Blob(np.full(shape, np.nan, np.float32)) for shape in self.delivery.next_shapes()]

    def batches(self) -> list[tuple[bytes, bytes]]:
        """Of an epoch, data and labels; closes the pipeline."""
        taken = []
        with self.pipeline:
            for _ in range(-(-_SAMPLES // _BATCH)):
                blobs = self.blobs()
                self.delivery.deliver(blobs)
                taken.append((blobs[0].data.tobytes(), blobs[1].data.tobytes()))
        return taken


@pytest.fixture
def converts_straight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extension, too, which takes samples of any size."""
    monkeypatch.setattr(conversion, "_ROW_ITEMS", 0)


def _forbid_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the images; labels come from there."""
    put = Conversion.put

    def checked(self: Conversion, rows: AnyArray, out: AnyArray, corners: Any = None) -> None:
        assert rows.ndim == 1, "the images were converted from a slot"
        put(self, rows, out, corners)

    monkeypatch.setattr(Conversion, "put", checked)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("form", ["npy", "hdf5", "chunks", "files"])
@pytest.mark.parametrize(
    "transform", [{}, {"mean_value": [104, 117, 123], "scale": 0.5}, {"mean_file": "mean.npy"}], ids=str
)
def test_the_values_are_those_that_a_slot_would_give(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    converts_straight: None,
    form: str,
    transform: dict[str, Any],
    compiled: bool,
) -> None:
    np.save(tmp_path / "mean.npy", np.linspace(0, 255, np.prod(_SHAPE), dtype=np.float32).reshape(_SHAPE))
    monkeypatch.chdir(tmp_path)
    source = _write(tmp_path, form)
    with monkeypatch.context() as patched:
        if not compiled:
            patched.setattr(conversion, "convert", None)
        _forbid_slots(patched)
        straight = _Delivered(source, transform=transform).batches()
    monkeypatch.setattr(conversion, "convert", None)
    monkeypatch.setattr(conversion, "_ROW_ITEMS", 1 << 40)
    assert straight == _Delivered(source, transform=transform).batches()


@pytest.mark.usefixtures("converts_straight")
@pytest.mark.parametrize("decode", [True, False])
def test_what_is_cropped_or_not_in_one_piece_comes_from_a_slot(tmp_path: Path, decode: bool) -> None:
    source = _write(tmp_path, "npy")
    if decode:
        assert _Delivered(source, transform={"crop_size": 60}).batches()
        return
    delivered = _Delivered(source)
    with delivered.pipeline:
        wide = np.full((_BATCH, *_SHAPE[:-1], 2 * _SHAPE[-1]), np.nan, np.float32)
        blobs = [Blob(wide[..., ::2]), delivered.blobs()[1]]
        batch = delivered.delivery.deliver(blobs)
        np.testing.assert_array_equal(wide[..., ::2], _arrays()[0][batch.indices])
        assert np.isnan(wide[..., 1::2]).all()


@pytest.mark.usefixtures("converts_straight")
def test_a_file_that_was_cut_short_is_told(tmp_path: Path) -> None:
    delivered = _Delivered(_write(tmp_path, "npy"))
    with delivered.pipeline:
        delivered.delivery.deliver(delivered.blobs())
        with (tmp_path / "data.npy").open("r+b") as file:
            file.truncate(1000)
        with pytest.raises(SampleError) as caught:
            delivered.delivery.deliver(delivered.blobs())
        assert str(tmp_path / "data.npy") in str(caught.value)


@pytest.mark.usefixtures("converts_straight")
def test_a_blob_of_another_type_gets_what_it_can_hold_or_an_error(tmp_path: Path) -> None:
    delivered = _Delivered(_write(tmp_path, "npy"), transform={"scale": 2.0})
    with delivered.pipeline:
        wide = [Blob(np.zeros(shape, np.float64)) for shape in delivered.delivery.next_shapes()]
        batch = delivered.delivery.deliver(wide)
        np.testing.assert_array_equal(wide[0].data, _arrays()[0][batch.indices] * 2.0)
        whole = [Blob(np.zeros(shape, np.int64)) for shape in delivered.delivery.next_shapes()]
        with pytest.raises(ParameterError):
            delivered.delivery.deliver(whole)
