"""From paths to a source that reads them, and the lines that a user pastes."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import cv2
import h5py  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
import yaml
from blobfeed.tools.found import Found, in_yaml, sample_of
from blobfeed.tools.recognise import source_of

from blobfeed import BatchReader, SourceError
from tests.support.datums import encoded_datum, raw_datum, write_lmdb
from tests.support.pictures import encoded, picture, write_pictures
from tests.support.standin_files import write_hdf5
from tests.support.tars import write_tar

SAMPLES = 12
DATA = np.random.default_rng(0).integers(0, 256, (SAMPLES, 1, 6, 5), np.uint8)
LABEL = np.arange(SAMPLES, dtype=np.int64) % 3


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def first_batch(found: Found) -> dict[str, Any]:
    """What a reader gives that is told just the lines which `inspect` prints."""
    declared = yaml.safe_load(in_yaml(dict(found.declared)))
    with BatchReader(declared, tops=found.tops, batch_size=SAMPLES, num_loaders=0) as reader:
        return dict(next(iter(reader)))


def write_idx(path: Path, array: Any) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + array.tobytes()) if path.suffix == ".gz" else header + array.tobytes())


def test_a_quoted_glob_and_the_printed_line_are_taken_as_path_takes_them() -> None:
    for number in (10, 2):
        write_hdf5(Path(f"a_{number}.h5"), data=DATA, label=LABEL)
    found = source_of(["a_*.h5"])
    assert found.declared == {"hdf5": {"path": ["a_2.h5", "a_10.h5"]}}
    assert source_of([f"source: {in_yaml(dict(found.declared))}"]).declared == found.declared


def test_the_pictures_of_a_mixed_folder_are_listed_when_asked_for() -> None:
    write_pictures(Path(), "mixed/0.png")
    for name in "abc":
        Path(f"mixed/{name}.txt").write_text("a cat\n")
    assert source_of(["mixed"], image_list=Path("list.txt")).kind == "image_list"
    assert Path("list.txt").read_text() == "mixed/0.png\n"


def test_the_tops_of_an_hdf5_file_are_its_data_sets_of_one_length() -> None:
    write_hdf5(Path("a.h5"), data=DATA, label=LABEL, names=np.arange(3))
    found = source_of(["a.h5"])
    assert (found.declared, found.tops) == ({"hdf5": {"path": "a.h5"}}, None)
    assert found.remarks == ("ignored, since they have another length than 12: names",)
    batch = first_batch(found)
    assert (batch["data"] == DATA).all()
    assert (batch["label"] == LABEL).all()


def test_data_sets_of_other_names_are_named_the_largest_first() -> None:
    write_hdf5(Path("a.h5"), y=LABEL, **{"images/left": DATA})
    found = source_of(["a.h5"])
    assert found.tops == ("images/left", "y")
    assert (first_batch(found)["y"] == LABEL).all()


MEAN, MASK = np.zeros((3, 4, 4), np.float32), np.zeros((6, 6), np.uint8)
ONE = {"data": DATA[:1], "label": LABEL[:1]}
AS_OF_MATLAB = {"data": DATA, "label": LABEL} | dict.fromkeys(("rate", "title", "classes"), np.ones((1, 1)))
FEATURES = {"label": LABEL} | {f"feature_{n}": np.full((SAMPLES, 2), n) for n in range(12)}
PAIRS = {f"s{n}/{name}": MASK for n in range(12) for name in ("image", "label")}


@pytest.mark.parametrize(
    ("arrays", "tops"),
    [
        (ONE, "data label"),
        (ONE | {"mean": MEAN}, "data label"),
        (AS_OF_MATLAB, "data label"),  # data sets of one entry do not count the samples
        (FEATURES, " ".join(FEATURES)),
        (PAIRS, "image label"),
    ],
)
def test_data_sets_are_tops_or_samples_by_their_names_and_lengths(arrays: dict[str, Any], tops: str) -> None:
    write_hdf5(Path("a.h5"), **arrays)
    with closing(source_of(["a.h5"]).open()) as source:
        assert {*source.specs} == {*tops.split()}


def test_a_mean_of_a_samples_size_does_not_make_tops_of_samples() -> None:
    pictures = {f"img_{number}": np.zeros((3, 4, 4), np.uint8) for number in range(12)}
    write_hdf5(Path("a.h5"), **pictures, mean=MEAN)
    assert source_of(["a.h5"]).kind == "hdf5_samples"


def test_data_sets_that_are_no_arrays_are_left_out() -> None:
    with h5py.File("a.h5", "w") as file:
        file["data"], file["label"] = DATA, LABEL
        file["table"] = np.zeros(SAMPLES, [("a", "i4")])
        file.create_dataset("names", (SAMPLES,), h5py.string_dtype())
        file.create_dataset("cells", (SAMPLES,), h5py.ref_dtype)
        file.create_dataset("grows", (0, 3), maxshape=(None, 3), dtype="f4")
    found = source_of(["a.h5"])
    assert found.tops == ("data", "label", "names")
    assert found.remarks == (
        "ignored, since they are empty or have no axis: grows",
        "ignored, since they are no arrays of numbers or strings: cells, table",
    )
    assert (first_batch(found)["data"] == DATA).all()


def test_a_file_for_each_sample_is_seen_by_the_number_of_files() -> None:
    Path("scans").mkdir()
    for number in range(12):
        shape = 5 + number % 2, 4
        np.savez(f"scans/s{number}.npz", x=np.full(shape, number), label=number)
        np.save(f"scans/s{number}.npy", np.full(shape, number))
    for paths in (["scans/*.npz"], [f"scans/s{number}.npz" for number in range(12)]):
        found = source_of(paths)
        assert found.declared == {"files": {"path": "scans/*.npz", "max_shapes": {"x": [6, 4]}}}
    assert source_of(["scans/*.npy"]).declared == {"files": {"path": "scans/*.npy", "max_shapes": {"data": [6, 4]}}}
    assert source_of(["scans/s1.npy", "scans/s2.npy"]).kind == "npy"
    with closing(found.open()) as source:
        assert list(source.specs) == ["x", "label"]


@pytest.mark.parametrize(("below", "labels"), [("", "folder"), ("raw", "(?:^|/)(cat|dog)/")])
def test_a_folder_of_pictures_is_labelled_by_its_folders(below: str, labels: str) -> None:
    for number, (kind, name) in enumerate((("cat", "0.png"), ("cat", "1.jpg"), ("dog", "0.png"))):
        write_pictures(Path("photos", kind, below), name, size=(6 + number, 8))
    found = source_of(["photos"])
    assert (found.kind, found.declared["files"]["labels"]) == ("files", labels)
    with closing(found.open()) as source:
        labelled = {
            Path(source.where(n)).relative_to(Path("photos").absolute()).parts[0]: int(sample_of(source, n)["label"])
            for n in range(3)
        }
    assert labelled == {"cat": 0, "dog": 1}


def test_a_file_of_matlab_is_seen_behind_its_user_block() -> None:
    with h5py.File("a.mat", "w", userblock_size=512) as file:
        file["data"], file["label"] = DATA, LABEL
    with Path("a.mat").open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM")
    assert (first_batch(source_of(["a.mat"]))["data"] == DATA).all()


def test_a_data_set_for_each_sample_is_seen_by_the_numbers_in_the_names() -> None:
    """Attributes that are no labels are left out."""
    with h5py.File("a.h5", "w") as file:
        for number, sample in enumerate(DATA):
            attributes = file.create_dataset(f"sample_{number}", data=sample).attrs
            attributes["TITLE"] = h5py.Empty("S1")  # as PyTables writes it
            attributes["class"] = LABEL[number]
            attributes["scale"] = file["sample_0"].ref
    found = source_of(["a.h5"])
    assert found.declared == {"hdf5_samples": {"path": "a.h5", "labels": ["class"]}}
    batch = first_batch(found)
    assert (batch["data"] == DATA).all()
    assert (batch["class"] == LABEL).all()


def test_a_group_of_data_sets_for_each_sample_too() -> None:
    with h5py.File("a.h5", "w") as file:
        for number, sample in enumerate(DATA):
            file[f"demo_{number}/obs"], file[f"demo_{number}/act"] = sample, LABEL[number : number + 1]
            file[f"demo_{number}/said"], file[f"demo_{number}/table"] = "lift it", np.zeros(2, [("a", "i4")])
    found = source_of(["a.h5"])
    assert found.kind == "hdf5_samples"
    assert set(first_batch(found)) == {"obs", "act"}


@pytest.mark.parametrize(("data", "label"), [("x_train", "train_labels"), ("train-images", "train-labels")])
def test_npy_files_are_data_and_label_by_their_names(data: str, label: str) -> None:
    np.save(f"{data}.npy", DATA)
    np.save(f"{label}.npy", LABEL)
    found = source_of(sorted([f"{data}.npy", f"{label}.npy"]))
    assert found.declared == {"npy": {"data": f"{data}.npy", "label": f"{label}.npy"}}
    assert (first_batch(found)["label"] == LABEL).all()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_are_what_mnist_comes_in(suffix: str) -> None:
    write_idx(Path(f"train-images-idx3-ubyte{suffix}"), DATA[:, 0])
    write_idx(Path(f"train-labels-idx1-ubyte{suffix}"), LABEL.astype(np.uint8))
    batch = first_batch(source_of(sorted(map(str, Path().glob("train-*")))))
    assert (batch["data"] == DATA).all()
    assert (batch["label"] == LABEL).all()


def write_images(*sizes: tuple[int, int]) -> None:
    for number, size in enumerate(sizes):
        write_pictures(Path("photos", ("cats", "dogs")[number % 2]), f"{number}.png", size=size)


def test_a_folder_of_images_becomes_a_list_that_is_written_if_asked_for() -> None:
    write_images(*[(20, 30)] * 4)
    found = source_of(["photos"], image_list=Path("all.txt"))
    assert found.declared == {"image_list": {"path": "all.txt", "equal_sizes": True}}
    assert found.remarks == ("wrote all.txt: 4 images, classes 0 cats, 1 dogs",)
    assert source_of(["all.txt"]).declared == found.declared
    with closing(found.open()) as source:
        assert [source.where(index).rpartition("/")[2] for index in range(4)] == ["0.png", "2.png", "1.png", "3.png"]


def test_a_list_takes_the_place_of_no_other_file() -> None:
    write_images(*[(20, 30)] * 2)
    source_of(["photos"], image_list=Path("all.txt"))
    source_of(["photos"], image_list=Path("all.txt"))  # the same command again, as of a pack that was killed
    Path("all.txt").write_text(mine := "photos/cats/0.png 7\n")
    with pytest.raises(SourceError, match=r"all\.txt"):
        source_of(["photos"], image_list=Path("all.txt"))
    assert Path("all.txt").read_text() == mine


def test_lists_in_one_folder_number_the_classes_alike() -> None:
    write_images((20, 30), (20, 30))
    source_of(["photos"], image_list=Path("train.txt"))
    assert Path("classes.txt").read_text() == "cats\ndogs\n"
    shutil.rmtree("photos/cats")
    found = source_of(["photos"], image_list=Path("valid.txt"))
    assert Path("valid.txt").read_text() == "photos/dogs/1.png 1\n"
    assert "classes 0 cats, 1 dogs" in found.remarks[0]
    Path("photos/dogs").rename("photos/birds")
    with pytest.raises(SourceError, match="birds"):
        source_of(["photos"], image_list=Path("other.txt"))


def test_names_that_are_no_utf_8_are_listed() -> None:
    write_images((20, 30), (20, 30))
    cats = Path("photos/cats").rename(os.fsdecode(b"photos/caf\xe9"))
    (cats / "0.png").rename(cats / os.fsdecode(b"\xe9.png"))
    for name in ("train.txt", "valid.txt"):
        with closing(source_of(["photos"], image_list=Path(name)).open()) as source:
            assert [sample_of(source, index)["label"].item() for index in range(2)] == [0, 1]
    assert Path("train.txt").read_bytes() == b"photos/caf\xe9/\xe9.png 0\nphotos/dogs/1.png 1\n"
    assert Path("classes.txt").read_bytes() == b"caf\xe9\ndogs\n"


def test_a_list_names_folders_that_begin_like_a_comment_or_with_a_space() -> None:
    write_pictures(Path(), "#weird/0.png", " lead/1.png", "plain/2.png")
    with closing(source_of(["."], image_list=Path("all.txt")).open()) as source:
        found = [source.where(index).rpartition("/")[2] for index in range(len(source))]
    assert sorted(found) == ["0.png", "1.png", "2.png"]


def test_folders_behind_links_are_listed_and_nothing_hidden_is() -> None:
    names = ("store/0/0.png", "photos/1/0.png", "photos/1/._0.png", "photos/.ipynb_checkpoints/0.png")
    write_pictures(Path(), *names)
    Path("photos/0").symlink_to("../store/0")
    Path("photos/1/round").symlink_to("..")
    source_of(["photos"], image_list=Path("all.txt"))
    assert Path("all.txt").read_text() == "photos/0/0.png 0\nphotos/1/0.png 1\n"


def test_classes_are_numbered_as_torchvision_does() -> None:
    write_pictures(Path("photos"), "2/0.png", "10/0.png", "b/0.png", "B/0.png")
    source_of(["photos"], image_list=Path("all.txt"))
    assert Path("classes.txt").read_text() == "10\n2\nB\nb\n"


def test_pictures_with_a_text_and_more_beside_each_are_listed_and_other_files_named() -> None:
    write_images(*[(20, 30)] * 4)
    Path("photos/cats/0.heic").touch()
    for image in list(Path("photos").glob("*/*.png")):
        image.with_suffix(".txt").write_text("0 0.5 0.5 1 1\n")
        image.with_suffix(".json").write_text("{}")
    found = source_of(["photos"], image_list=Path("all.txt"))
    assert found.remarks[0].startswith("wrote all.txt: 4 images")
    assert found.remarks[-1] == "ignored by the ends of their names: .heic (1), .json (4), .txt (4)"


def test_pictures_that_show_data_files_are_not_taken_for_the_data() -> None:
    write_images(*[(20, 30)] * 3)
    for number, image in enumerate(sorted(Path("photos").glob("*/*.png"))):
        np.save(image.with_suffix(".npy"), np.full((5, 2), number))
        image.with_suffix(".json").write_text("{}")
        image.rename(image.with_suffix(".jpg"))
    assert source_of(["photos"]).kind == "npy"


@pytest.mark.parametrize("suffix", [".gif", ".GIF"])
def test_pictures_that_opencv_reads_are_listed(suffix: str) -> None:
    if not cv2.haveImageWriter(suffix.lower()):
        pytest.skip("this OpenCV writes no GIF")
    write_pictures(Path("photos"), f"0/0{suffix}", f"1/0{suffix}")
    with closing(source_of(["photos"], image_list=Path("all.txt")).open()) as source:
        assert sample_of(source, 1)["data"].shape == (3, 20, 30)


def test_images_of_several_sizes_get_a_shorter_side() -> None:
    write_images((20, 30), (40, 30), (50, 50))
    found = source_of(["photos"], image_list=Path("all.txt"))
    assert found.declared["image_list"]["shorter_side"] == 24  # a usual one, which train and val are likely to share
    assert found.transform == {"crop_size": 21}
    assert "take the same one for training and for validation" in found.remarks[1]
    with BatchReader(found.declared, batch_size=2, num_loaders=0, transform=found.transform) as reader:
        assert next(iter(reader))["data"].shape == (2, 3, 21, 21)
    assert "3 of 3 pictures looked at: 20×30 to 50×50" in found.remarks[1]


@pytest.mark.parametrize("sizes", [[(32, 200), (32, 500), (40, 300)], [(40, 9000), (40, 9001)]])
def test_long_pictures_fit_what_the_line_says(sizes: list[tuple[int, int]]) -> None:
    write_images(*sizes)
    with closing(source_of(["photos"], image_list=Path("all.txt")).open()) as source:
        assert all(sample_of(source, index)["data"].shape[2] > 4 * 32 for index in range(len(sizes)))


def test_an_lmdb_is_seen_as_a_folder_and_as_a_file() -> None:
    write_lmdb(Path("a"), (raw_datum(image, int(label)) for image, label in zip(DATA, LABEL, strict=True)))
    write_lmdb(Path("b.mdb"), (encoded_datum(encoded(picture(8 + n, 8), ".png")) for n in range(3)), subdir=False)
    assert (first_batch(source_of(["a"]))["data"] == DATA).all()
    found = source_of(["b.mdb"])
    assert found.declared == {"lmdb": {"path": "b.mdb", "max_height": 16, "max_width": 8}}
    assert found.color == "rgb"


def test_shards_of_pictures_have_data_and_label_and_whatever_else_there_is() -> None:
    sizes = [(20, 30), (40, 30)]
    members: list[tuple[str, bytes]] = []
    for number in range(8):
        members.append((f"{number}.jpg", encoded(picture(*sizes[number % 2]), ".jpg")))
        members += [(f"{number}.cls", b"%d" % (number % 3)), (f"{number}.txt", b"word %d" % number)]
    write_tar(Path("a.tar"), members)
    write_tar(Path("b.tar"), members)
    found = source_of(["a.tar", "b.tar"])
    named = {"data": "jpg", "label": "cls", "txt": "txt"}
    assert found.declared == {"tar": {"path": ["a.tar", "b.tar"], "members": named, "shorter_side": 24}}
    assert found.color == "rgb"
    assert "20×30 to 40×30" in found.remarks[0]
    with closing(found.open()) as source:
        assert len(source) == 16
        assert sample_of(source, 9)["label"] == 1


def test_parquet_files_have_data_and_label_and_whatever_else_there_is() -> None:
    Path("a").mkdir()
    for number in range(2):
        images = [{"bytes": encoded(picture(20, 30 + 4 * row), ".jpg"), "path": None} for row in range(4)]
        table = pa.table({"image": images, "label": [0, 1, 2, 3], "words": ["a", "b", "c", "d"]})
        pq.write_table(table, f"a/{number}.parquet")
    named = {"data": "image", "label": "label", "words": "words"}
    paths = ["a/0.parquet", "a/1.parquet"]
    assert source_of(paths).declared == {"parquet": {"path": paths, "columns": named, "shorter_side": 16}}
    found = source_of(["a"])
    assert found.color == "rgb"
    with closing(found.open()) as source:
        assert len(source) == 8
        assert sample_of(source, 5)["label"] == 1
    pq.write_table(table.select(["label"]), "b.parquet")
    assert source_of(["b.parquet"]).declared == {"parquet": {"path": "b.parquet"}}


def test_no_column_of_a_parquet_file_takes_the_name_of_another_one() -> None:
    images = [{"bytes": encoded(picture(20, 30 + 4 * row), ".jpg"), "path": None} for row in range(4)]
    numbers = [3, 2, 1, 0]
    pq.write_table(pa.table({"image": images, "label": numbers, "cls": [9] * 4, "data": numbers}), "a.parquet")
    found = source_of(["a.parquet"])
    assert found.declared["parquet"]["columns"] == {"data": "image", "label": "label", "cls": "cls"}
    assert found.remarks[-1] == "ignored, since the pictures take its name: data"


def test_shards_without_pictures_are_read_as_they_are() -> None:
    write_tar(Path("a.tar"), [(f"{number}.{kind}", b"1") for number in range(5) for kind in ("json", "cls")])
    assert source_of(["a.tar"]).declared == {"tar": {"path": "a.tar"}}


def test_a_list_of_hdf5_files_and_a_folder_of_them() -> None:
    """The first of them may be empty."""
    Path("parts").mkdir()
    for number, rows in enumerate((slice(0), slice(7), slice(7, None))):
        write_hdf5(Path(f"parts/{number}.h5"), data=DATA[rows], label=LABEL[rows])
    Path("list.txt").write_text("parts/0.h5\nparts/1.h5\nparts/2.h5\n")
    for path in ("list.txt", "parts"):
        assert (first_batch(source_of([path]))["data"] == DATA).all()


@pytest.mark.parametrize("start", ["\n", "\ufeff"])
@pytest.mark.parametrize("labels", ["0", "0 1"])
def test_a_list_is_seen_as_its_source_reads_it(start: str, labels: str) -> None:
    write_images((20, 30), (20, 30))
    Path("all.txt").write_text(f"{start}photos/cats/0.png {labels}\nphotos/dogs/1.png {labels}\n")
    assert source_of(["all.txt"]).declared == {"image_list": {"path": "all.txt", "equal_sizes": True}}


def write_zarr(path: Path, shape: tuple[int, ...], dtype: object = "<f4") -> None:
    """An array without chunks, which has the fill value everywhere."""
    path.mkdir(parents=True)
    form = {"zarr_format": 2, "order": "C", "compressor": None, "filters": None, "fill_value": 0}
    (path / ".zarray").write_text(json.dumps({**form, "shape": shape, "chunks": shape, "dtype": dtype}))


def test_a_zarr_group_is_seen_by_its_files() -> None:
    for name, shape in {"data": (12, 3), "label": (12,)}.items():
        write_zarr(Path("a.zarr", name), shape)
    Path("a.zarr/.zgroup").write_text('{"zarr_format": 2}')
    assert source_of(["a.zarr"]) == Found({"zarr": {"path": "a.zarr"}})
    assert source_of(["a.zarr/data"]) == Found({"zarr": {"path": "a.zarr/data"}})
    Path("a.zarr/data").rename("a.zarr/images")
    write_zarr(Path("a.zarr/x"), (3,))
    write_zarr(Path("a.zarr/deep/fields"), (12,), [["a", "<i4"]])
    found = source_of(["a.zarr"])
    assert found.tops == ("images", "label")
    assert found.remarks == (
        "ignored, since they have another length than 12: x",
        "ignored, since they are no arrays of numbers or strings: deep/fields",
    )


def test_the_tops_of_an_npz_file_are_its_arrays_of_one_length() -> None:
    np.savez("all.npz", x=DATA, y=LABEL)
    assert source_of(["all.npz"]) == Found({"npz": {"path": "all.npz"}})
    fields = np.zeros(SAMPLES, [("a", "i4")])
    np.savez("mnist.npz", x_test=DATA[:4], y_test=LABEL[:4], x_train=DATA, y_train=LABEL, n=3, fields=fields)
    found = source_of(["mnist.npz"])
    assert found.tops == ("x_train", "y_train")
    assert found.remarks == (
        "ignored, since they have another length than 12: x_test, y_test",
        "ignored, since they are empty or have no axis: n",
        "ignored, since they are no arrays of numbers or strings: fields",
    )
    assert (first_batch(found)["x_train"] == DATA).all()


def test_letters_of_other_languages_stand_as_they_are_in_the_line_to_paste() -> None:
    # As YAML escapes them they need double quotes, which would end a prototxt's param_str.
    Path("Bücher 日本").mkdir()
    np.save("Bücher 日本/α.npy", DATA)
    found = source_of(["Bücher 日本/α.npy"])
    assert in_yaml(dict(found.declared)) == "{npy: {data: Bücher 日本/α.npy}}"
    assert (first_batch(found)["data"] == DATA).all()


def test_a_declaration_is_taken_as_it_stands() -> None:
    np.save("x.npy", DATA)
    assert source_of(["{npy: {data: x.npy}}"]).declared == {"npy": {"data": "x.npy"}}
    assert source_of(["{npz: x.npz}"]).declared == {"npz": {"path": "x.npz"}}


def test_a_name_that_begins_with_a_tilde_and_no_user_is_a_file() -> None:
    np.save("~backup.npy", DATA)
    assert source_of(["~backup.npy"]).declared == {"npy": {"data": "~backup.npy"}}


@pytest.mark.parametrize(
    ("declared", "color"),
    [
        ("{image_list: a.txt}", "rgb"),
        ("{image_list: {path: a.txt, color: bgr}}", "bgr"),
        ("{concat: [{parquet: a}, {tar: {path: a.tar}}]}", "rgb"),
        ("{concat: [{parquet: a}, {npy: {data: a.npy}}]}", ""),
        ("{zip: [{parquet: a}, {npy: {data: a.npy}}]}", "rgb"),
        ("{npy: {data: a.npy}}", ""),
        ("{lmdb: raw}", "bgr"),
        ("{concat: [{hdf5: bgr.h5}, {lmdb: raw}]}", "bgr"),
        ("{zip: [{hdf5: bgr.h5, tops: [data]}, {parquet: a}]}", "bgr"),
    ],
)
def test_the_order_of_channels_is_known_where_pictures_are_decoded(declared: str, color: str) -> None:
    write_lmdb(Path("raw"), [raw_datum(np.zeros((3, 4, 4), np.uint8), 0)])
    with h5py.File("bgr.h5", "w") as file:
        file.attrs["color"] = "bgr"
    assert source_of([declared]).color == color
