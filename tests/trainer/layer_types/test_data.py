"""Caffe's own data layers: in TEST the numbers of BVLC Caffe 1.0 to the bit, in TRAIN crops and mirrors by the seed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import cv2
import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.trainer.layer_types.data import Data, _DataLayer
from blobfeed.trainer.net import Net
from blobfeed.trainer.prototxt import Phase
from numpy.typing import NDArray

from blobfeed import ParameterError, SampleError
from tests.support.datums import encoded_datum, raw_datum, write_lmdb
from tests.support.pictures import decoded, encoded, noise, picture, with_orientation, write_list
from tests.support.trainer_nets import make_net, with_inputs

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "files.npz")
CASES = sorted(key.removesuffix("/prototxt") for key in GOLDEN.files if key.endswith("/prototxt"))

Batch = dict[str, NDArray[np.float32]]


@pytest.fixture(autouse=True)
def _made_in_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no loaders, but for one test: they would make the same batches."""
    if request.function is not test_in_train_crops_lie_anywhere_and_half_are_mirrored:
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


# ---- what TRAIN draws


def crops_of(image: NDArray[np.float32], size: int) -> set[bytes]:
    height, width = image.shape[1:]
    return {
        image[:, top : top + size, left : left + size].tobytes()
        for top in range(height - size + 1)
        for left in range(width - size + 1)
    }


@pytest.mark.parametrize("kind", ["Data", "ImageData"])
def test_in_train_crops_lie_anywhere_and_half_are_mirrored(files: Path, kind: str) -> None:
    transform = "transform_param { crop_size: 30 mirror: true }"
    text = data_layer("raw_lmdb", "batch_size: 12", transform)
    if kind == "ImageData":
        text = image_data("batch_size: 12", transform)
    whole = of_caffe("data_raw-plain", "data")[:12]
    straight = [crops_of(image, 30) for image in whole]
    mirrored = [crops_of(image[:, :, ::-1], 30) for image in whole]
    found = joined(batches(files, text, 8))
    turned = [row.tobytes() in mirrored[nth % 12] for nth, row in enumerate(found)]
    assert all(turned[nth] or row.tobytes() in straight[nth % 12] for nth, row in enumerate(found))
    assert 24 <= sum(turned) <= 72
    assert len({row.tobytes() for row in found}) > 60
    np.testing.assert_array_equal(joined(batches(files, text, 8)), found)
    assert (joined(batches(files, text, 8, seed=1)) != found).any()


def test_rand_skip_begins_somewhere_and_goes_on_from_there(files: Path) -> None:
    plain = of_caffe("data_raw-plain", "data")[:12]
    starts = set()
    for seed in range(4):
        found = joined(batches(files, data_layer("raw_lmdb", "batch_size: 5 rand_skip: 12"), 3, seed=seed))
        first = next(nth for nth, image in enumerate(plain) if (image == found[0]).all())
        np.testing.assert_array_equal(found, plain[np.arange(first, first + 15) % 12])
        starts.add(first)
    assert len(starts) > 1


@pytest.mark.parametrize("kind", ["ImageData", "HDF5Data"])
def test_shuffled_each_epoch_has_every_sample_once_in_another_order(tmp_path: Path, kind: str) -> None:
    if kind == "HDF5Data":
        write_hdf5(tmp_path)
        text = hdf5_data("batch_size: 12 shuffle: true")
    else:
        write_list(tmp_path, {f"{nth}.png": encoded(noise(4, 4, nth), ".png") for nth in range(12)})
        text = image_data("batch_size: 12 shuffle: true")
    found = batches(tmp_path, text, 3)
    orders = [batch["label"].tolist() for batch in found]
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert len({*map(tuple, orders), tuple(range(12))}) == 4


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


def test_what_a_net_computes_is_written_batch_behind_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = write_hdf5(tmp_path)
    double = 'layer { name: "p" type: "Power" bottom: "data" top: "twice" power_param { scale: 2 } }'
    output = 'layer { name: "o" type: "HDF5Output" bottom: "twice" bottom: "label"'
    output += ' hdf5_output_param { file_name: "o.h5" } }'
    (tmp_path / "o.h5").write_text("left from an earlier run")
    batches(tmp_path, f"{hdf5_data('batch_size: 5')} {double} {output}", 2)
    with h5py.File("o.h5") as file:
        np.testing.assert_array_equal(file["data"][:], 2 * values[:10].astype(np.float32))
        assert file["label"][:].tolist() == list(range(10))


def test_all_batches_are_written_to_one_file_though_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = 'layer { name: "o" type: "HDF5Output" bottom: "x" bottom: "x" hdf5_output_param { file_name: "o.h5" } }'
    net = make_net(tmp_path, with_inputs(text, x=(2, 3)))
    net.forward()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    net.forward()
    with h5py.File(tmp_path / "o.h5") as file:
        assert len(file["data"]) == 4


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


# ---- sizes, colours, tops, paths


def test_images_of_several_sizes_may_be_cropped_or_come_alone(tmp_path: Path) -> None:
    images = [noise(9, 8, 1), noise(6, 12, 2), noise(7, 7, 3)]
    contents = [encoded(image, ".png") for image in images]
    write_lmdb(tmp_path / "db", map(encoded_datum, contents))
    write_list(tmp_path, {f"{nth}.png": content for nth, content in enumerate(contents)})
    crop = "transform_param { crop_size: 5 }"
    planes = [image.transpose(2, 0, 1) for image in images]
    corners = [((image.shape[1] - 5) // 2, (image.shape[2] - 5) // 2) for image in planes]
    cropped = [image[:, top : top + 5, left : left + 5] for image, (top, left) in zip(planes, corners, strict=True)]
    for text in (data_layer("db", "batch_size: 3", crop), image_data("batch_size: 3", crop)):
        np.testing.assert_array_equal(joined(batches(tmp_path, text, 1, Phase.TEST)), cropped)
    for text in (data_layer("db", "batch_size: 1"), image_data("batch_size: 1")):
        for batch, image in zip(batches(tmp_path, text, 3), planes, strict=True):
            np.testing.assert_array_equal(batch["data"], image[np.newaxis])
    for text in (data_layer("db", "batch_size: 2"), image_data("batch_size: 2")):
        with pytest.raises(SampleError, match=r"(000001'|line 2).*6×12.*9×8"):
            batches(tmp_path, text, 1)


def test_encoded_records_are_gray_or_coloured_as_the_net_asks(tmp_path: Path) -> None:
    gray = noise(6, 6)[:, :, 0]
    write_lmdb(tmp_path / "gray", [encoded_datum(encoded(gray, ".png"))])
    for asked in ("transform_param { force_color: true }", ""):
        options = "batch_size: 2" if asked else "batch_size: 2 force_encoded_color: true"
        (batch,) = batches(tmp_path, data_layer("gray", options, asked), 1)
        np.testing.assert_array_equal(batch["data"], np.broadcast_to(gray, (2, 3, 6, 6)))
    content = encoded(picture(6, 6))
    write_lmdb(tmp_path / "colour", [encoded_datum(content)])
    (batch,) = batches(tmp_path, data_layer("colour", "batch_size: 2", "transform_param { force_gray: true }"), 1)
    decoder_gray = decoded(content, cv2.IMREAD_GRAYSCALE).reshape(1, 6, 6)  # not the weighted sum of the colours
    np.testing.assert_array_equal(batch["data"], np.broadcast_to(decoder_gray, (2, 1, 6, 6)))


@pytest.mark.parametrize("is_color", [True, False])
def test_image_data_turns_pictures_upright_as_opencv_does(tmp_path: Path, is_color: bool) -> None:
    content = with_orientation(encoded(picture(30, 44)), 6)
    write_list(tmp_path, {"a.jpg": content})
    upright = decoded(content, cv2.IMREAD_COLOR if is_color else cv2.IMREAD_GRAYSCALE).reshape(44, 30, -1)
    (batch,) = batches(tmp_path, image_data(f"batch_size: 1 is_color: {str(is_color).lower()}"), 1)
    np.testing.assert_array_equal(batch["data"], upright.transpose(2, 0, 1)[np.newaxis])


def test_a_layer_gets_its_parameters_as_a_mapping(files: Path) -> None:
    with running(files, data_layer("raw_lmdb", "batch_size: 2")) as net:
        parameters = net.user_layers()["d"].param_str
    assert parameters["batch_size"] == 2
    assert parameters["source"] == {"lmdb": {"path": str(files / "raw_lmdb")}}


def test_the_label_may_be_left_out(files: Path) -> None:
    text = data_layer("raw_lmdb", "batch_size: 2").replace('top: "label"', "").replace('"data"', '"pictures"')
    (batch,) = batches(files, text, 1, Phase.TEST)
    assert list(batch) == ["pictures"]
    np.testing.assert_array_equal(batch["pictures"], of_caffe("data_raw-plain", "data")[:2])


@pytest.mark.parametrize("backend", ["backend: LEVELDB", ""])
def test_an_lmdb_is_read_whatever_the_backend_and_a_leveldb_is_refused(
    files: Path, tmp_path: Path, backend: str
) -> None:
    text = data_layer("raw_lmdb", "batch_size: 2").replace("backend: LMDB", backend)
    (batch,) = batches(files, text, 1, Phase.TEST)
    np.testing.assert_array_equal(batch["data"], of_caffe("data_raw-plain", "data")[:2])
    (tmp_path / "level").mkdir()
    (tmp_path / "level" / "CURRENT").write_text("MANIFEST-000002\n")
    with pytest.raises(ParameterError):
        make_net(tmp_path, data_layer("level", "batch_size: 2").replace("backend: LMDB", backend))


def test_files_are_found_from_the_working_directory_too(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    for each in (image_data("batch_size: 2"), data_layer("raw_lmdb", "batch_size: 2")):
        (batch,) = batches(tmp_path, each, 1)
        np.testing.assert_array_equal(batch["data"], of_caffe("data_raw-plain", "data")[:2])


# ---- older nets


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
