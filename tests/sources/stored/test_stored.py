"""Names of files, file systems of a network, and the memory that readers keep."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from blobfeed.sources.files import RecentlyUsed, Scratch, expand_paths, natural_key
from blobfeed.sources.files import file as stored_file
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import BatchReader


@pytest.mark.parametrize("pattern", ["run[1]/*.h5", "run[1]/part_[12].h5", "**/*.h5"])
def test_a_glob_below_a_folder_with_brackets_in_its_name_finds_its_files(pattern: str, tmp_path: Path) -> None:
    folder = tmp_path / "data [of x]"
    files = [folder / "run[1]" / "part_1.h5", folder / "run[1]" / "part_2.h5"]
    files[0].parent.mkdir(parents=True)
    for file in files:
        file.touch()
    (tmp_path / "data [of x]" / "run1").mkdir()  # what the brackets would mean
    assert expand_paths(pattern, folder, "test") == list(map(str, files))
    assert expand_paths(str(folder / pattern), Path(), "test") == list(map(str, files))


def test_names_sort_by_the_numbers_in_them() -> None:
    names = ["t10/a", "t2/b", "t2/a", "s", "t1", "10", "9", "t2"]
    assert sorted(names, key=natural_key) == ["9", "10", "s", "t1", "t2", "t2/a", "t2/b", "t10/a"]


@given(st.permutations(["s1", "s01", "s001", "s2"]))
def test_names_with_equal_numbers_have_one_order_wherever_they_are_listed(names: list[str]) -> None:
    assert sorted(names, key=natural_key) == ["s001", "s01", "s1", "s2"]


@pytest.mark.parametrize("files", [1, 3])
def test_files_of_a_network_are_read_and_not_mapped(
    files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    named = "30 22 0:0 / /a\x0b\u2028\udcff rw - ext4 x rw\n"
    named += f"31 22 {os.major(device)}:{os.minor(device)} / {tmp_path} rw shared:5 - fuse.sshfs server rw\n"
    mounts.write_bytes(os.fsencode(named))
    monkeypatch.setattr(stored_file, "MOUNTS", mounts)
    stored_file.is_network.cache_clear()
    whole = np.arange(60, dtype=">i4").reshape(30, 2)
    for number, part in enumerate(np.split(whole, files)):
        np.save(tmp_path / f"x{number}.npy", part)
        np.save(tmp_path / f"y{number}.npy", part.astype(np.int64))
    source = {"npy": {"data": f"{tmp_path}/x*.npy", "label": f"{tmp_path}/y*.npy"}}
    try:
        with BatchReader(source, batch_size=30, num_loaders=0, epochs=1) as reader:
            batch = next(iter(reader))
            assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    finally:
        stored_file.is_network.cache_clear()
    np.testing.assert_array_equal(batch["data"], whole)
    np.testing.assert_array_equal(batch["label"], whole)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=40), st.integers(1, 12))
def test_the_last_used_values_that_fit_are_kept(uses: list[tuple[int, int]], limit: int) -> None:
    kept: RecentlyUsed[int, bytes] = RecentlyUsed(limit, weigh=len)
    model: dict[int, bytes] = {}
    for key, size in uses:
        value = bytes(size)
        kept.put(key, value)
        model.pop(key, None)
        model[key] = value
        while sum(map(len, model.values())) > limit:
            model.pop(next(iter(model)))
        assert {each: kept.get_or_make(each, pytest.fail, "it is gone") for each in model} == model
        assert kept.weight == sum(map(len, model.values()))
    kept.clear()
    assert (kept.weight, kept.get(0)) == (0, None)


def test_scratch_memory_is_used_again_and_each_thread_has_its_own() -> None:
    scratch = Scratch()
    memory = scratch.take((4, 3))
    with ThreadPoolExecutor(1) as thread:
        assert not np.shares_memory(memory, thread.submit(scratch.take, (12,)).result())
    assert np.shares_memory(memory, scratch.take((2, 5)))
    assert pickle.loads(pickle.dumps(scratch)).memory.size == 0, "it is sent to loaders with its source"
