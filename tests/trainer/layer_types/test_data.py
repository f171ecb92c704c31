"""Caffe's own data layers: in TEST the numbers of BVLC Caffe 1.0 to the bit, and what each field asks of the reader.

What a reader draws from its seed, and how it decodes, is held where the reader is tested.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.trainer.layer_types.data import Data, _DataLayer
from blobfeed.trainer.net import Net
from blobfeed.trainer.prototxt import Phase
from numpy.typing import NDArray

from blobfeed import ParameterError, SampleError
from tests.support.datums import raw_datum, write_lmdb
from tests.support.pictures import noise
from tests.support.trainer_nets import make_net, with_inputs

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "files.npz")
CASES = sorted(key.removesuffix("/prototxt") for key in GOLDEN.files if key.endswith("/prototxt"))

Batch = dict[str, NDArray[np.float32]]


@pytest.fixture(autouse=True)
def _made_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no loaders: they would make the same batches."""
    given = Data._param_str
    monkeypatch.setattr(_DataLayer, "_param_str", lambda layer: {**given(layer), "num_loaders": 0})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pictures, lists, databases and the mean that Caffe's tools wrote."""
    folder = tmp_path_factory.mktemp("files")
    for key in GOLDEN.files:
        if key.startswith("file/"):
            path = folder / key.removeprefix("file/")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(GOLDEN[key].tobytes())
    return folder


def of_caffe(case: str, name: str) -> NDArray[np.float32]:
    """Its first three batches, one behind the other."""
    found = GOLDEN[f"{case}/{name}"]
    same_as = str(found) if found.dtype.kind == "U" else f"{case}/{name}"
    return np.asarray(GOLDEN[same_as], np.float32)


@contextlib.contextmanager
def running(folder: Path, text: str, phase: Phase = Phase.TRAIN, seed: int = 0) -> Iterator[Net]:
    net = make_net(folder, text, phase, seed)
    try:
        yield net
    finally:
        net.close()


def batches(folder: Path, text: str, count: int, phase: Phase = Phase.TRAIN, seed: int = 0) -> list[Batch]:
    with running(folder, text, phase, seed) as net:
        found = []
        for _ in range(count):
            net.forward()
            found.append({name: np.array(blob.data) for name, blob in net.blobs.items()})
        return found


def joined(found: list[Batch], name: str = "data") -> NDArray[np.float32]:
    return np.concatenate([batch[name] for batch in found])


def layer(kind: str, options: str, more: str = "") -> str:
    return f'layer {{ name: "d" type: "{kind}" top: "data" top: "label" {more}\n {options} }}'


def data_layer(source: str, options: str = "", more: str = "") -> str:
    return layer("Data", f'data_param {{ source: "{source}" backend: LMDB {options} }}', more)


def image_data(options: str, more: str = "") -> str:
    return layer("ImageData", f'image_data_param {{ source: "list.txt" {options} }}', more)


def hdf5_data(options: str) -> str:
    return layer("HDF5Data", f'hdf5_data_param {{ source: "files.txt" {options} }}')


@pytest.mark.parametrize("case", CASES)
def test_in_test_every_number_is_caffes(files: Path, case: str) -> None:
    found = batches(files, str(GOLDEN[f"{case}/prototxt"]), 3, Phase.TEST)
    for name in ("data", "label"):
        np.testing.assert_array_equal(joined(found, name), of_caffe(case, name))


# ---- what a field asks for

CROP = "transform_param { crop_size: 20 mirror: true }"
FIELDS: list[tuple[str, str, object]] = [
    (data_layer("raw_lmdb", "batch_size: 2"), "batch_size", 2),
    (data_layer("raw_lmdb", "batch_size: 2 rand_skip: 7"), "rand_skip", 7),
    (data_layer("raw_lmdb", "batch_size: 2 prefetch: 3"), "prefetch_batches", 3),
    (data_layer("raw_lmdb", "batch_size: 2", CROP), "transform.crop_size", 20),
    (data_layer("raw_lmdb", "batch_size: 2", CROP), "transform.mirror", True),
    (data_layer("raw_lmdb", "batch_size: 2").replace('top: "label"', ""), "tops", ("data",)),
    (data_layer("raw_lmdb", "batch_size: 2").replace("LMDB", "LEVELDB"), "source.lmdb.is_color", None),
    (data_layer("encoded_lmdb", "batch_size: 2 force_encoded_color: true"), "source.lmdb.is_color", True),
    (
        data_layer("encoded_lmdb", "batch_size: 2", "transform_param { force_color: true }"),
        "source.lmdb.is_color",
        True,
    ),
    (
        data_layer("encoded_lmdb", "batch_size: 2", "transform_param { force_gray: true }"),
        "source.lmdb.is_color",
        False,
    ),
    # Sizes may vary in crops, and where an image is a batch by itself.
    (data_layer("encoded_lmdb", "batch_size: 2"), "source.lmdb.max_height", None),
    (data_layer("encoded_lmdb", "batch_size: 2", CROP), "source.lmdb.max_height", 8192),
    (image_data("batch_size: 1"), "source.image_list.max_height", 2048),
    (image_data("batch_size: 2"), "source.image_list.equal_sizes", True),
    (image_data("batch_size: 2 is_color: false"), "source.image_list.is_color", False),
    (image_data("batch_size: 2"), "source.image_list.exif", True),
    (image_data("batch_size: 2 shuffle: true"), "shuffle", True),
    (image_data("batch_size: 2 rand_skip: 7"), "rand_skip", 7),
]


@pytest.mark.parametrize(("text", "name", "value"), FIELDS, ids=[text.replace("\n", "") for text, *_ in FIELDS])
def test_a_field_becomes_a_parameter_of_the_reader(files: Path, text: str, name: str, value: object) -> None:
    with running(files, text, seed=5) as net:
        found = parameters = net.user_layers()["d"].param_str
    for part in name.split("."):
        found = found.get(part)
    assert found == value
    assert parameters["seed"] is not None


def test_the_seed_of_the_net_decides_what_is_drawn(files: Path) -> None:
    text = data_layer("raw_lmdb", "batch_size: 12", CROP)
    first, again, other = (joined(batches(files, text, 1, seed=seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


# ---- HDF5Data


def write_hdf5(folder: Path) -> NDArray[np.float64]:
    """Two files of 7 and 5 samples, and a list of them; the samples' values are returned."""
    values = np.random.default_rng(0).normal(size=(12, 2, 3))
    for name, rows in (("a.h5", slice(0, 7)), ("b.h5", slice(7, 12))):
        with h5py.File(folder / name, "w") as file:
            file["data"], file["label"] = values[rows], np.arange(12)[rows]
            file["pair"] = np.stack([np.arange(12), np.arange(12) * 2], 1)[rows].astype(np.float32)
    (folder / "files.txt").write_text("a.h5\nb.h5\n")
    return values


def test_hdf5_files_are_read_one_after_the_other_by_the_names_of_the_tops(tmp_path: Path) -> None:
    values = write_hdf5(tmp_path)
    text = hdf5_data("batch_size: 5").replace('top: "data" top: "label"', 'top: "pair" top: "data"')
    found = batches(tmp_path, text, 3)
    rows = np.arange(15) % 12
    np.testing.assert_array_equal(joined(found), values[rows].astype(np.float32))
    np.testing.assert_array_equal(joined(found, "pair"), np.stack([rows, 2 * rows], 1))
    assert [batch["pair"].shape for batch in found] == [(5, 2)] * 3


def test_a_shuffled_epoch_of_hdf5_files_has_every_sample_once_in_another_order(tmp_path: Path) -> None:
    write_hdf5(tmp_path)
    orders = [batch["label"].tolist() for batch in batches(tmp_path, hdf5_data("batch_size: 12 shuffle: true"), 2)]
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert len({*map(tuple, orders), tuple(range(12))}) == 3


def test_what_a_net_computes_is_written_batch_behind_batch_though_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = write_hdf5(tmp_path)
    double = 'layer { name: "p" type: "Power" bottom: "data" top: "twice" power_param { scale: 2 } }'
    output = 'layer { name: "o" type: "HDF5Output" bottom: "twice" bottom: "label"'
    output += ' hdf5_output_param { file_name: "o.h5" } }'
    (tmp_path / "o.h5").write_text("left from an earlier run")
    with running(tmp_path, f"{hdf5_data('batch_size: 5')} {double} {output}") as net:
        net.forward()
        monkeypatch.chdir("/")
        net.forward()
    with h5py.File(tmp_path / "o.h5") as file:
        np.testing.assert_array_equal(file["data"][:], 2 * values[:10].astype(np.float32))
        assert file["label"][:].tolist() == list(range(10))


def test_a_batch_without_rows_adds_none_to_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = """layer { name: "f" type: "Filter" bottom: "x" bottom: "keep" top: "kept" }
              layer { name: "o" type: "HDF5Output" bottom: "kept" bottom: "kept"
                      hdf5_output_param { file_name: "o.h5" } }"""
    net = make_net(tmp_path, with_inputs(text, x=(2, 3), keep=(2,)))
    for keep in ([1, 0], [0, 0], [0, 1]):
        net.blobs["x"].data[...] = np.arange(6).reshape(2, 3)
        net.blobs["keep"].data[...] = keep
        net.forward()
    with h5py.File("o.h5") as file:
        assert file["data"][:].tolist() == file["label"][:].tolist() == [[0, 1, 2], [3, 4, 5]]


# ---- paths and older nets


def test_files_are_found_from_the_working_directory_too(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    for each in (image_data("batch_size: 2"), data_layer("raw_lmdb", "batch_size: 2")):
        (batch,) = batches(tmp_path, each, 1, Phase.TEST)
        np.testing.assert_array_equal(batch["data"], of_caffe("data_raw-plain", "data")[:2])


OLD_NETS = {
    "2014": """layers { name: "d" type: DATA top: "data" top: "label" data_param {
        source: "raw_lmdb" backend: LMDB batch_size: 5 crop_size: 20 mean_file: "mean.binaryproto" } }""",
    "2014, transform_param": """layers { name: "d" type: IMAGE_DATA top: "data" top: "label"
        image_data_param { source: "list.txt" batch_size: 5 }
        transform_param { crop_size: 20 mean_file: "mean.binaryproto" } }""",
}


@pytest.mark.parametrize("text", OLD_NETS.values(), ids=OLD_NETS)
def test_nets_in_older_formats_read_the_same(files: Path, text: str) -> None:
    found = batches(files, text, 3, Phase.TEST)
    np.testing.assert_array_equal(joined(found), of_caffe("data_raw-crop_mean_file", "data"))


# ---- mistakes


def test_what_is_wrong_with_the_files_names_them_and_the_layer(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="/none") as error:
        make_net(tmp_path, data_layer("none", "batch_size: 2"))
    assert any("net.prototxt:1:1: layer 'd'" in note for note in error.value.__notes__)
    write_lmdb(tmp_path / "bad", [raw_datum(noise(3, 3).copy()), b"broken"])
    with pytest.raises(SampleError, match="00000001"):
        batches(tmp_path, data_layer("bad", "batch_size: 2"), 1)
