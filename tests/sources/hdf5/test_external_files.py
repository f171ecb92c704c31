"""Data sets that lead to other files: only below the file's own folder unless that is allowed, and never too short."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest

from blobfeed import SourceError
from tests.support.stored import assert_rows, in_loader, opened

VALUES = np.arange(24, dtype=np.float32).reshape(8, 3)


def _storage(file: h5py.File, target: Path, name: str) -> None:
    target.write_bytes(VALUES.tobytes())
    file.create_dataset("data", VALUES.shape, "f4", external=[(name, 0, h5py.h5f.UNLIMITED)])


def _link(file: h5py.File, target: Path, name: str) -> None:
    with h5py.File(target, "w") as other:
        other["x"] = VALUES
    file["data"] = h5py.ExternalLink(name, "x")


def _soft_link_to_a_link(file: h5py.File, target: Path, name: str) -> None:
    _link(file, target, name)
    file.move("data", "elsewhere")
    file["data"] = h5py.SoftLink("/elsewhere")


def _virtual(file: h5py.File, target: Path, name: str) -> None:
    with h5py.File(target, "w") as other:
        other["x"] = VALUES
    layout = h5py.VirtualLayout(VALUES.shape, "f4")
    layout[:] = h5py.VirtualSource(name, "x", VALUES.shape)
    file.create_virtual_dataset("data", layout)


def _virtual_of_a_link(file: h5py.File, target: Path, name: str) -> None:
    """Its only source is the file itself, and there a link leads out of it."""
    _link(file, target, name)
    _hide_behind_a_virtual_one(file)


def _virtual_of_storage(file: h5py.File, target: Path, name: str) -> None:
    _storage(file, target, name)
    _hide_behind_a_virtual_one(file)


def _hide_behind_a_virtual_one(file: h5py.File) -> None:
    file.move("data", "elsewhere")
    layout = h5py.VirtualLayout(VALUES.shape, "f4")
    layout[:] = h5py.VirtualSource(".", "elsewhere", VALUES.shape)
    file.create_virtual_dataset("data", layout)


def _pattern(file: h5py.File, part: str, *names: str) -> None:
    """Rows eight by eight from data set `part` of file `name`, "%b" their number; beside them the next name's."""
    unlimited, width = h5py.h5s.UNLIMITED, 3 * len(names)
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    space = h5py.h5s.create_simple((8, width), (unlimited, width))
    for column, name in enumerate(names):
        space.select_hyperslab((0, 3 * column), (unlimited, 1), stride=(8, 3), block=(8, 3))
        creation.set_virtual(space, name.encode(), part.encode(), h5py.h5s.create_simple((8, 3)))
    h5py.h5d.create(file.id, b"data", h5py.h5t.IEEE_F32LE, space, creation)


def _pattern_of_links(file: h5py.File, target: Path, name: str) -> None:
    _link(file, target, name)
    file.move("data", "part0")
    _pattern(file, "part%b", ".")


def _pattern_of_storage(file: h5py.File, target: Path, name: str) -> None:
    _storage(file, target, name)
    file.move("data", "part0")
    _pattern(file, "part%b", ".")


def _pattern_of_files_that_lead_elsewhere(file: h5py.File, target: Path, name: str) -> None:
    with h5py.File(Path(file.filename).with_name("100%[a]0.h5"), "w") as other:
        _link(other, target, name)
    _pattern(file, "data", "100%%[a]%b.h5")


Make = Callable[[h5py.File, Path, str], None]
MAKERS: list[Make] = [_storage, _link, _soft_link_to_a_link, _virtual, _virtual_of_a_link, _virtual_of_storage]
MAKERS += [_pattern_of_links, _pattern_of_storage, _pattern_of_files_that_lead_elsewhere]


def _open(make: Make, target: Path, name: str, kind: str = "hdf5", **options: Any) -> Any:
    folder = target.parent if target.parent.name == "mine" else target.parent / "mine"
    folder.mkdir(exist_ok=True)
    with h5py.File(folder / "a.h5", "w") as file:
        make(file, target, name)
    wanted = {"tops": ["data"]} if kind == "hdf5" else {}
    return opened(kind, folder, path="a.h5", **wanted, **options)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("absolute", [False, True])
def test_what_lies_outside_of_the_file_s_folder_is_read_only_if_it_is_allowed(
    make: Make, absolute: bool, tmp_path: Path
) -> None:
    name = str(tmp_path / "secret.bin") if absolute else "../secret.bin"
    with pytest.raises(SourceError, match=r"a\.h5:data.*secret\.bin"):
        _open(make, tmp_path / "secret.bin", name)
    if make in (_virtual_of_storage, _pattern_of_storage):
        return  # the library looks for it from the working directory
    source = _open(make, tmp_path / "secret.bin", name, allow_external=True)
    assert_rows(in_loader(source), [5, 2], {"data": VALUES})


@pytest.mark.parametrize("make", [_storage, _link])
def test_samples_outside_of_the_file_s_folder_are_read_only_if_it_is_allowed(make: Make, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"a\.h5:data.*secret\.bin"):
        _open(make, tmp_path / "secret.bin", "../secret.bin", "hdf5_samples")
    source = _open(make, tmp_path / "secret.bin", "../secret.bin", "hdf5_samples", allow_external=True)
    assert_rows(in_loader(source), [0], {"data": VALUES[None]})


@pytest.mark.parametrize("make", [_storage, _link, _soft_link_to_a_link, _virtual])
def test_names_are_taken_from_the_file_s_folder_wherever_the_program_runs(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir("/")
    source = _open(make, tmp_path / "mine" / "b.bin", "b.bin")
    assert_rows(in_loader(source), [5, 2], {"data": VALUES})


def test_parts_beside_the_file_that_a_symbolic_link_names_are_found(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    _open(_virtual, tmp_path / "mine" / "b.bin", "b.bin")
    (tmp_path / "link.h5").symlink_to(tmp_path / "mine" / "a.h5")
    source = opened("hdf5", tmp_path, path="link.h5", tops=["data"])
    assert_rows(in_loader(source), [5, 2], {"data": VALUES})


@pytest.mark.parametrize("kind", ["hdf5", "hdf5_samples"])
def test_a_part_that_another_process_has_locked_is_read_if_locking_is_off(kind: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    _open(_virtual, tmp_path / "mine" / "b.bin", "b.bin")
    with (tmp_path / "mine" / "b.bin").open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        source = opened(kind, tmp_path / "mine", path="a.h5", tops=["data"], locking=False)
        assert_rows(in_loader(source), [0], {"data": VALUES if kind == "hdf5" else VALUES[None]})


def test_all_parts_that_a_pattern_stands_for_are_read_and_none_may_be_missing(tmp_path: Path) -> None:
    parts = {f"{name}{number}": VALUES + 10 * number for name, count in (("b", 3), ("c", 2)) for number in range(count)}
    for name, values in parts.items():
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = values
    with h5py.File(tmp_path / "a.h5", "w") as file:
        _pattern(file, "x", "b%b.h5")
    source = opened("hdf5", tmp_path, path="a.h5", tops=["data"])
    assert_rows(in_loader(source), [5, 20, 9], {"data": np.concatenate([parts["b0"], parts["b1"], parts["b2"]])})
    with h5py.File(tmp_path / "a.h5", "w") as file:
        _pattern(file, "x", "b%b.h5", "c%b.h5")
    with pytest.raises(SourceError, match=r"a\.h5:data.*c2\.h5"):
        opened("hdf5", tmp_path, path="a.h5", tops=["data"])
