"""HDF5 with a data set or a group per sample: found in natural order, read where it lies, labels from attributes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.workers.base.errors import ParameterError, SourceError
from blobfeed.workers.base.specs import AnyArray, ArraySpec, RaggedRows
from blobfeed.workers.sources import Source
from blobfeed.workers.sources.hdf5_samples import scan as hdf5_samples_scan
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.stored import (
    BY_MAP,
    BY_PREADV,
    MAP_BELOW_BYTES,
    assert_delivers,
    assert_rows,
    bytes_read,
    in_loader,
    opened,
    patterns,
    rows_of,
    some_array,
)

KIND = "hdf5_samples"
SAMPLES = 23


def archive(path: Path, samples: Sequence[AnyArray] | AnyArray, first: int = 0, **options: Any) -> None:
    """`samples` as trajectory_<number>, with attributes: a number, an array and a name for each."""
    with h5py.File(path, "w") as file:
        for number, sample in enumerate(samples, first):
            dataset = file.create_dataset(f"trajectory_{number}", data=sample, **options)
            dataset.attrs.update({"label": number % 7, "pose": np.arange(3.0) + number, "name": f"no. {number}"})


def labels(samples: int) -> dict[str, AnyArray]:
    return {
        "label": np.arange(samples) % 7,
        "pose": np.arange(3.0) + np.arange(samples)[:, None],
        "name": np.array([f"no. {number}".encode() for number in range(samples)]),
    }


# -------------------------------------------------------------------------------------------- a data set per sample


@pytest.mark.parametrize("way", MAP_BELOW_BYTES)
@pytest.mark.parametrize("dtype", ["u1", "<f4", ">f4", "?", "S5"])
@pytest.mark.parametrize("options", [{}, {"chunks": True, "compression": "gzip"}])
def test_samples_come_in_natural_order_with_their_attributes(
    options: dict[str, Any], dtype: str, way: str, tmp_path: Path
) -> None:
    data = some_array((SAMPLES, 4, 3), dtype)
    archive(tmp_path / "a.h5", data, **options)
    source = opened(KIND, tmp_path, path="a.h5", labels=["label", "pose", "name"])
    assert source.modules == (("h5py",) if options else ())
    assert source.where(10) == f"{tmp_path}/a.h5:trajectory_10"
    with bytes_read(way):
        assert_delivers(source, {"data": data, **labels(SAMPLES)}, patterns(SAMPLES))


def test_samples_that_are_single_numbers_are_samples_too(tmp_path: Path) -> None:
    values = np.arange(SAMPLES, dtype="f4")
    archive(tmp_path / "a.h5", list(values))
    assert_delivers(opened(KIND, tmp_path, path="a.h5"), {"data": values}, patterns(SAMPLES))


@pytest.mark.parametrize("path", [["b10.h5", "b9.h5"], "*.h5", "list.txt"])
def test_several_files_follow_each_other(path: Any, tmp_path: Path) -> None:
    data = some_array((SAMPLES, 4), "i4")
    order = ["b10.h5", "b9.h5"] if path != "*.h5" else ["b9.h5", "b10.h5"]
    (tmp_path / "list.txt").write_text("\n".join(order))
    archive(tmp_path / order[0], data[:9])
    archive(tmp_path / order[1], data[9:], first=9)
    source = opened(KIND, tmp_path, path=path, labels=["label"], open_files=1)
    assert source.where(9) == f"{tmp_path}/{order[1]}:trajectory_9"
    assert_delivers(source, {"data": data, "label": np.arange(SAMPLES) % 7}, patterns(SAMPLES))


def test_tops_say_which_attributes_are_wanted_and_labels_may_rename_them(tmp_path: Path) -> None:
    data = some_array((SAMPLES, 4), "i4")
    archive(tmp_path / "a.h5", data)
    known = {"data": data, **labels(SAMPLES)}
    for tops, options in [
        (["data", "label"], {}),
        (["pose", "data"], {}),
        (["data"], {"labels": ["label", "pose"]}),
    ]:
        source = opened(KIND, tmp_path, tops, path="a.h5", **options)
        assert_delivers(source, {top: known[top] for top in tops}, patterns(SAMPLES)[:3])
    renamed = opened(KIND, tmp_path, path="a.h5", labels={"class": "label"})
    assert_delivers(renamed, {"data": data, "class": known["label"]}, patterns(SAMPLES)[:3])


def test_groups_and_limits_choose_among_the_samples(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, name in enumerate(["train/cat/2", "train/cat/10", "train/dog/1", "test/cat/1", "loose"]):
            file[name] = np.full(3, number)
        file["train/again"] = file["train/cat"]

    def numbers(**options: Any) -> list[int]:
        source = opened(KIND, tmp_path, path="a.h5", **options)
        found = rows_of(source, range(len(source)))["data"][:, 0].tolist()
        source.close()
        return [int(number) for number in found]

    assert numbers() == [4, 3, 0, 1, 2]
    assert numbers(groups=["train"]) == [0, 1, 2]
    assert numbers(groups=["train/dog", "/test"]) == [2, 3]
    assert numbers(limit=2) == [4, 3]


def test_links_into_other_files_and_odd_neighbours_are_read_by_the_library(tmp_path: Path) -> None:
    data = some_array((4, 5), ">i2")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["pad"], file["x"] = np.zeros(99), data[1]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["0"] = data[0]
        file["1"] = h5py.ExternalLink("other.h5", "x")
        file["2"] = data[2].astype("<i2")
        file.create_dataset("3", data=data[3], chunks=(2,), compression="lzf")
    source = opened(KIND, tmp_path, path="a.h5")
    assert source.modules == ("h5py",)
    assert_delivers(source, {"data": data}, patterns(4))


def test_a_user_block_before_the_data_does_not_shift_it(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        for number in range(3):
            file[str(number)] = np.full((2, 2), number)
    source = opened(KIND, tmp_path, path="a.h5")
    assert_delivers(source, {"data": np.repeat(np.arange(3), 4).reshape(3, 2, 2)}, patterns(3))


# ------------------------------------------------------------------------------------------------------ varying shapes


def assert_ragged(source: Source, indices: Sequence[int], samples: Sequence[AnyArray]) -> None:
    rows = rows_of(source, indices)["data"]
    assert isinstance(rows, RaggedRows)
    for row, index in enumerate(indices):
        found = rows.get(row)
        assert found.shape == samples[index].shape
        assert found.tolist() == samples[index].tolist()


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


# ------------------------------------------------------------------------------------- a group of data sets per sample


def demonstrations(path: Path, count: int) -> dict[str, AnyArray]:
    stored = {
        "obs/rgb": some_array((count, 4, 4, 3), "u1"),
        "actions": some_array((count, 6), "f4"),
        "success": np.arange(count) % 2 == 0,
        "task": np.arange(count),
    }
    with h5py.File(path, "w") as file:
        for number in range(count):
            group = file.create_group(f"data/demo_{number}")
            group["obs/rgb"] = stored["obs/rgb"][number]
            group["actions"] = stored["actions"][number]
            group["actions"].attrs["success"] = stored["success"][number]
            group.attrs["task"] = number
        file["data/unrelated"] = np.zeros(3)
    return stored


def test_a_group_can_be_a_sample_with_a_top_for_each_of_its_data_sets(tmp_path: Path) -> None:
    stored = demonstrations(tmp_path / "a.h5", SAMPLES)
    options = {"path": "a.h5", "datasets": ["obs/rgb", "actions"], "labels": ["success", "task"]}
    source = opened(KIND, tmp_path, **options)
    assert source.where(10) == f"{tmp_path}/a.h5:data/demo_10"
    assert_delivers(source, stored, patterns(SAMPLES))
    some = opened(KIND, tmp_path, ["task", "actions"], **options)
    assert_delivers(some, {top: stored[top] for top in ("task", "actions")}, patterns(SAMPLES)[:3])


# ----------------------------------------------------------------------------------------------------------- the index


@given(indices=st.lists(st.integers(0, SAMPLES - 1), max_size=30))
@settings(deadline=None, max_examples=30)
def test_any_indices_give_their_samples(indices: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    data = some_array((SAMPLES, 4), "i4")
    if not (folder / "p2.h5").exists():
        archive(folder / "p1.h5", data[:9])
        archive(folder / "p2.h5", data[9:], first=9)
    source = in_loader(opened(KIND, folder, path=["p1.h5", "p2.h5"], labels=["label"]))
    assert_rows(source, indices, {"data": data, "label": np.arange(SAMPLES) % 7})
    source.close()


def test_a_kept_index_gives_the_same_samples_without_going_through_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [some_array((1 + n % 3, 2), "f4", n) for n in range(SAMPLES)]
    archive(tmp_path / "a.h5", samples)
    options: dict[str, Any] = {"path": "a.h5", "labels": ["label", "pose", "name"], "index_cache": "a.index"}
    first = opened(KIND, tmp_path, **options)
    scans = count_scans(monkeypatch)
    again = in_loader(opened(KIND, tmp_path, **options))
    assert scans == []
    assert again.specs == first.specs
    assert again.fingerprint() == first.fingerprint()
    assert [again.where(n) for n in range(SAMPLES)] == [first.where(n) for n in range(SAMPLES)]
    assert_ragged(again, patterns(SAMPLES)[2], samples)
    rows, expected = rows_of(again, range(SAMPLES)), labels(SAMPLES)
    assert all(rows[name].tolist() == values.tolist() for name, values in expected.items())
    assert [entry.name for entry in tmp_path.iterdir() if "index" in entry.name] == ["a.index"]
    again.close()


def count_scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    scans: list[str] = []
    scan = hdf5_samples_scan.Scan.add_file

    def counting(self: Any, stamp: Any, *args: Any) -> None:
        scans.append(stamp.path)
        scan(self, stamp, *args)

    monkeypatch.setattr(hdf5_samples_scan.Scan, "add_file", counting)
    return scans


def test_a_kept_index_is_made_anew_when_a_file_or_what_is_wanted_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(tmp_path / "a.h5", some_array((3, 2), "f4"))
    scans = count_scans(monkeypatch)

    def samples(**options: Any) -> int:
        return len(opened(KIND, tmp_path, path="a.h5", index_cache="a.index", **options))

    assert [samples(), samples(), samples(limit=2), samples(), samples()] == [3, 3, 2, 3, 3]
    assert len(scans) == 3
    archive(tmp_path / "a.h5", some_array((5, 2), "f4"))
    assert [samples(), samples()] == [5, 5]
    assert len(scans) == 4


@pytest.mark.parametrize("content", [b"", b"precious notes", "npz"])
def test_a_file_that_is_no_index_is_not_written_over(content: Any, tmp_path: Path) -> None:
    archive(tmp_path / "a.h5", some_array((3, 2), "f4"))
    kept = tmp_path / "a.index"
    if content == "npz":
        with kept.open("wb") as stream:
            np.savez(stream, precious=np.arange(3))
    else:
        kept.write_bytes(content)
    before = kept.read_bytes()
    with pytest.raises(SourceError, match=r"index_cache '.*a\.index' exists and is no index .*; remove it or name"):
        opened(KIND, tmp_path, path="a.h5", index_cache="a.index")
    assert kept.read_bytes() == before


def test_an_index_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    archive(tmp_path / "a.h5", some_array((3, 2), "f4"))
    with pytest.raises(SourceError, match=r"index_cache '.*absent/a\.index' cannot be written: .*No such file"):
        opened(KIND, tmp_path, path="a.h5", index_cache="absent/a.index")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.h5"]


def test_a_loader_of_samples_in_one_piece_imports_no_h5py(tmp_path: Path) -> None:
    import pickle

    archive(tmp_path / "a.h5", some_array((3, 2), "f4"))
    (tmp_path / "source.pickle").write_bytes(pickle.dumps(opened(KIND, tmp_path, path="a.h5", labels=["label"])))
    script = (
        "import pickle, sys, numpy as np, pathlib\n"
        "from blobfeed.workers.base.specs import allocate_rows\n"
        "source = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "out = allocate_rows(source.specs, 2)\n"
        "source.read(np.array([2, 1]), out)\n"
        "assert out['label'].tolist() == [2, 1]\n"
        "assert 'h5py' not in sys.modules and 'torch' not in sys.modules, 'too much is imported'\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "source.pickle")], check=True)


# -------------------------------------------------------------------------------------------------------------- errors


def attributes_missing(file: h5py.File) -> None:
    file["0"], file["1"] = np.zeros(2), np.zeros(2)
    file["0"].attrs["label"] = 1
    file["1"].attrs["labels"] = 1


def attributes_unlike(file: h5py.File) -> None:
    for number, value in enumerate([1, [1, 2]]):
        file[str(number)] = np.zeros(2)
        file[str(number)].attrs["label"] = value


def attributes_mixed(file: h5py.File) -> None:
    for number, value in enumerate([1, "one"]):
        file[str(number)] = np.zeros(2)
        file[str(number)].attrs["label"] = value


def attribute_of_references(file: h5py.File) -> None:
    file["0"] = np.zeros(2)
    file["0"].attrs["label"] = file["0"].ref


def types_unlike(file: h5py.File) -> None:
    file["0"], file["1"] = np.zeros(2, "f4"), np.zeros(2, "f8")


def axes_unlike(file: h5py.File) -> None:
    file["0"], file["1"] = np.zeros(2), np.zeros((2, 2))


def text(file: h5py.File) -> None:
    file["0"] = "a string of varying length"


def all_empty(file: h5py.File) -> None:
    file["0"], file["1"] = np.zeros((0, 2)), np.zeros((0, 2))


def dangling(file: h5py.File) -> None:
    file["0"] = h5py.SoftLink("/nowhere")


def empty(file: h5py.File) -> None:
    file.create_group("group")


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (attributes_missing, {"labels": ["label"]}, r"a\.h5:1 has no attribute 'label' \(did you mean 'labels'\?\)"),
        (
            attributes_unlike,
            {"labels": ["label"]},
            r"'label' of .*a\.h5:1 has \(2,\) int64, that of .*:0 has \(\)",
        ),
        (
            attributes_mixed,
            {"labels": ["label"]},
            r"'label' of .*a\.h5:1 has \(\) \|S3, that of .*:0 has \(\) int64",
        ),
        (attribute_of_references, {"labels": ["label"]}, r"'label' of .*a\.h5:0 holds .*: expected numbers or strings"),
        (types_unlike, {}, r"a\.h5:1 holds float64, .*a\.h5:0 float32: all need one type"),
        (axes_unlike, {}, r"a\.h5:1 has shape \(2, 2\), .*a\.h5:0 has 1 axes"),
        (text, {}, r"a\.h5:0 holds object, which is no array of numbers or fixed strings"),
        (all_empty, {}, r"samples of 'data' are empty: their shape is \(0, 2\)"),
        (dangling, {}, r"a\.h5:0 is a link that leads nowhere"),
        (empty, {}, r"no samples: no data set in \('',\) of .*a\.h5"),
        (empty, {"datasets": ["x", "y"]}, r"no samples: no group with x, y in"),
        (empty, {"groups": ["grup"]}, r"a\.h5' has no group 'grup' \(did you mean 'group'\?\); it holds group"),
        (types_unlike, {"groups": ["0"]}, r"a\.h5' has no group '0'"),
        (
            lambda file: file.create_dataset("demo/x", data=1),
            {"datasets": ["x", "y"]},
            r":demo lacks y; it holds x",
        ),
        (lambda file: file.create_group("demo/x"), {"datasets": ["x"]}, r"a\.h5:demo/x is a group, not a data set"),
    ],
)
def test_bad_archives_are_named_before_training_starts(
    make: Callable[[h5py.File], None], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file)
    with pytest.raises(SourceError, match=message):
        opened(KIND, tmp_path, path="a.h5", **options)


def test_numbers_of_several_types_become_the_type_that_holds_all(tmp_path: Path) -> None:
    values: list[Any] = [1, 2.5, np.float32(3), True]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, value in enumerate(values):
            file[str(number)] = np.zeros(2)
            file[str(number)].attrs.update({"label": value, "name": "x" * (number + 1)})
    source = opened(KIND, tmp_path, path="a.h5", labels=["label", "name"])
    assert source.specs["label"].dtype == np.float64
    rows = rows_of(source, range(4))
    assert rows["label"].tolist() == [1.0, 2.5, 3.0, 1.0]
    assert rows["name"].tolist() == [b"x", b"xx", b"xxx", b"xxxx"]
    source.close()


@pytest.mark.parametrize(
    ("tops", "options", "message"),
    [
        (None, {"labels": "label"}, "'labels' is 'label'"),
        (["data", "lable"], {"labels": ["label"]}, r"for the top 'lable' \(did you mean 'label'\?\)"),
        (["label"], {"labels": ["label"]}, "are labels only"),
        (None, {"memory_map": True}, "unknown parameter 'memory_map'"),
        (None, {"group": ["x"]}, r"unknown parameter 'group' \(did you mean 'groups'\?\)"),
    ],
)
def test_bad_options_are_named(tops: list[str] | None, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    archive(tmp_path / "a.h5", some_array((3, 2), "f4"))
    with pytest.raises(ParameterError, match=message):
        opened(KIND, tmp_path, tops, path="a.h5", **options)


@pytest.mark.parametrize("options", [{}, {"chunks": True, "compression": "gzip"}])
@pytest.mark.parametrize("happening", ["gone", "rewritten", "shorter"])
def test_a_file_that_changed_is_named(happening: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    archive(path, some_array((3, 50), "f4"), **options)
    source = in_loader(opened(KIND, tmp_path, path="a.h5"))
    if happening == "gone":
        path.unlink()
    elif happening == "rewritten":
        os.utime(path, ns=(0, 12345))
    else:
        os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(SourceError, match=r"a\.h5: it was"):
        rows_of(source, [2])
    source.close()


def test_a_damaged_sample_is_named_and_spares_the_others(tmp_path: Path) -> None:
    data = some_array((3, 500), "f4")
    archive(tmp_path / "a.h5", data, compression="gzip", chunks=(500,), fletcher32=True)
    with h5py.File(tmp_path / "a.h5") as file:
        chunk = file["trajectory_1"].id.get_chunk_info(0)
    with (tmp_path / "a.h5").open("r+b") as stream:
        stream.seek(chunk.byte_offset + 5)
        stream.write(b"\xff\x00\xff")
    source = in_loader(opened(KIND, tmp_path, path="a.h5"))
    with pytest.raises(SourceError, match=r"a\.h5:trajectory_1: reading the sample failed"):
        rows_of(source, [0, 1, 2])
    assert_rows(source, [2, 0], {"data": data})
    source.close()
