"""Arrays in memory and .npz files as sources, sources put end to end, and paths as users write them."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.sources import open_source
from blobfeed.sources.table import Memory
from blobfeed.workers.api import AnyArray

from blobfeed import BatchReader, SourceError
from tests.sources.contract.kinds import write_hdf5

DATA = np.arange(120, dtype=np.float32).reshape(20, 3, 2)
LABEL = np.arange(20)


def all_of(source: Any, **parameters: Any) -> dict[str, Any]:
    given = {"batch_size": 4, "num_loaders": 0, "epochs": 1, "last_batch": "partial", **parameters}
    with BatchReader(source, **given) as reader:
        batches = list(reader)
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def test_the_loaders_share_one_copy_whatever_becomes_of_the_array_and_it_is_given_back(tmp_path: Path) -> None:
    def memory_files() -> set[int]:
        gc.collect()
        links = Path("/proc/self/fd").iterdir()
        return {entry.stat().st_ino for entry in links if "blobfeed-arrays" in _link(entry)}

    large = np.zeros((64, 1 << 20), np.uint8)
    source = open_source({"arrays": {"data": large}}, tops=None, base_dir=tmp_path)
    sent = pickle.dumps(source)
    assert len(sent) < 100_000
    with BatchReader(source, batch_size=8, num_loaders=2, epochs=1) as reader:
        large[:] = 1
        assert len(memory_files()) == 1
        assert [batch["data"].any() for batch in reader] == [False] * 8
    del reader, source
    assert not memory_files()
    with pytest.raises(SourceError):
        pickle.loads(sent)


def _link(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:  # the descriptor that lists them
        return ""


@pytest.mark.parametrize(
    "declare",
    [
        lambda data: {"source": {"arrays": {"data": data}}},
        lambda data: {"source": {"arrays": {"data": data, "window": {"length": 3}}}},
        lambda data: {"source": {"concat": [{"arrays": {"data": data}}, {"arrays": {"data": DATA}}]}},
        lambda data: {
            "source": {"zip": [{"arrays": {"x": DATA}, "tops": "x"}, {"arrays": {"data": data}}]},
            "tops": "data",
        },
        lambda data: {"mix": [{"arrays": {"data": data}, "weight": 0.5}, {"arrays": {"data": DATA}}]},
    ],
    ids=["arrays", "windows", "concat", "zip", "mix"],
)
def test_a_reader_does_not_keep_the_array_beside_its_copy(declare: Callable[[Any], dict[str, Any]]) -> None:
    class Mine(np.ndarray[Any, Any]):
        """NumPy's own arrays have no weak references."""

    data = DATA.copy().view(Mine)
    kept = weakref.ref(data)
    with BatchReader(batch_size=4, num_loaders=0, **declare(data)) as reader:
        del data
        next(iter(reader))
        gc.collect()
        assert kept() is None


def test_words_that_lie_in_an_array_of_objects_are_taken() -> None:
    words = ["one", "three"]
    got = all_of({"arrays": {"data": np.array(words, object)}})["data"]
    assert got.tolist() == words


def test_an_npz_file_that_cannot_be_read_is_closed(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", data=DATA)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(b"PK\1\2") + 1] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(SourceError, match=r"a\.npz") as caught:
        open_source({"npz": "a.npz"}, tops=None, base_dir=tmp_path)
    assert caught.value.__traceback__, "it would keep the file alive"
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# ---- several sources


def test_a_bare_path_among_them_is_an_hdf5_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"] = DATA
    got = all_of({"concat": ["a.h5", tmp_path / "a.h5", {"arrays": {"data": DATA}}]}, tops=["data"], base_dir=tmp_path)
    np.testing.assert_array_equal(got["data"], np.concatenate([DATA] * 3))
    mixed = all_of(None, mix=["a.h5", tmp_path / "a.h5"], tops=["data"], base_dir=tmp_path)
    np.testing.assert_array_equal(mixed["data"], np.repeat(DATA, 2, axis=0))


def test_a_chunk_is_what_all_parts_have(tmp_path: Path) -> None:
    def chunk_samples(*lengths: int) -> int | None:
        parts = [{"data": np.zeros((length, 4))} for length in lengths]
        names = [f"of_{length}" for length in lengths]
        specs = [
            write_hdf5(tmp_path, [part], name, compression="gzip") for part, name in zip(parts, names, strict=True)
        ]
        return open_source({"concat": specs}, tops=["data"], base_dir=tmp_path).chunk_samples

    assert chunk_samples(9, 8) == 3
    assert chunk_samples(9, 2) is None


# ---- paths


@pytest.mark.parametrize("save", [None, np.savez, np.savez_compressed])
def test_a_path_may_be_a_path_object_or_begin_with_the_home_directory(
    save: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    kind = "npz" if save else "hdf5"
    if save:
        save(tmp_path / "train.npz", data=DATA, label=LABEL, other=np.ones(3))
    else:
        with h5py.File(tmp_path / "train.hdf5", "w") as file:
            file["data"], file["label"] = DATA, LABEL
    path = tmp_path / f"train.{kind}"
    for source in (*([] if save else [path, f"~/{path.name}"]), {kind: path}, {kind: f"~/{path.name}"}):
        got = all_of(source, tops=["data", "label"])
        np.testing.assert_array_equal(got["data"], DATA)
        np.testing.assert_array_equal(got["label"], LABEL)
    cache = {"path": Path("~/samples.cache"), "size_limit": 1 << 20}
    assert len(all_of({kind: {"path": path}}, tops=["data"], cache=cache)["data"]) == 20
    assert (tmp_path / "samples.cache").exists()


# ---- their memory file


ARRAYS: dict[str, AnyArray] = {
    "text": np.frombuffer(b"abc", np.uint8),
    "numbers": np.arange(6).reshape(2, 3),
    "none": np.zeros((4, 0), np.float32),
}


def test_a_pickled_copy_maps_the_same_memory_and_carries_no_bytes_of_it() -> None:
    shared = Memory("test", ARRAYS | {"large": np.zeros(100_000)})
    sent = pickle.dumps(shared)
    assert len(sent) < 1000
    copy = pickle.loads(sent)
    del shared  # its file is closed, and the copy's map stays
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(copy[name], array)
        assert copy[name].dtype == array.dtype
    assert copy["numbers"].ctypes.data % 64 == 0


def test_they_cannot_be_written_to() -> None:
    shared = Memory("test", ARRAYS)
    with pytest.raises(ValueError, match="read-only"):
        shared["numbers"][0, 0] = 7
