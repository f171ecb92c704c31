"""Mistakes with the commands that look into data and pack them: errors.txt has the words."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.tools.found import Found
from blobfeed.tools.locating import batches_of
from blobfeed.tools.packing import Layout, pack, pack_encoded
from blobfeed.tools.parameters import as_text
from blobfeed.tools.recognise import source_of
from blobfeed.tools.run_facts import read_losses, run_facts

from tests.support.catalogue import Catalogue, Scenario
from tests.support.pictures import encoded, picture, write_list, write_pictures


def _files() -> None:
    """The working directory is the scenario's own folder."""
    np.save("x.npy", np.zeros((4, 2, 6, 5), np.uint8))
    np.savez("x.npz", data=np.zeros((4, 3)))
    np.save("half.npy", np.full((3, 4), 0.5))
    np.save("text.npy", np.array(["one", "two"]))
    np.save("last.npy", np.zeros((4, 20, 30, 3), np.uint8))
    Path("a.bin").write_bytes(b"\1\0\2\3" * 200)
    Path("empty").mkdir()
    Path("empty.txt").touch()
    Path("words.txt").write_text("no such.jpg 3\n")
    Path("table.csv").write_text("0,0," * 2500 + "1\n")
    Path("net.prototxt").write_text('name: "net"\n')
    Path("a.tar.gz").write_bytes(gzip.compress(b"any"))
    Path("old").mkdir()
    Path("old", "CURRENT").write_text("MANIFEST-000002\n")
    for name, content in {"one": 1, "a": np.zeros(3, [("a", "i4")])}.items():
        with h5py.File(f"{name}.h5", "w") as file:
            file[name] = content
    with h5py.File("varying.h5", "w") as file:
        file.create_dataset("data", data=[np.ones(2), np.ones(3)], dtype=h5py.vlen_dtype("f4"))
    Path("cut.h5").write_bytes(Path("one.h5").read_bytes()[:-500])
    Path("damaged.h5").write_bytes(Path("one.h5").read_bytes().replace(b"SNOD", b"SNOX"))
    archive = bytearray(Path("x.npz").read_bytes())
    archive[archive.index(b"PK\1\2") + 8] |= 1 << 5  # a flag, for which zipfile raises NotImplementedError
    Path("damaged.npz").write_bytes(archive)
    for folder in ("first", "second"):
        Path(folder).mkdir()
        np.save(f"{folder}/train.npy", np.zeros((4, 3)))
    header = bytes([0, 0, 8, 3, 0, 0, 0, 12, 0, 0, 0, 6, 0, 0, 0, 5])
    for name, content in {"cut": header + bytes(359), "type": b"\0\0\x07\x01", "header": header[:6]}.items():
        Path(f"{name}.idx").write_bytes(content)
    write_pictures(
        Path(), "photos/cats/0.png", "photos/dogs/1.png", "mixed/cats/0.png", "mixed/0.png", "lines/two\nlines/0.png"
    )
    Path("lost").mkdir()
    write_pictures(Path(), "captions/0.png")
    for name in "abc":
        Path(f"captions/{name}.txt").write_text("a cat\n")
    Path("lost/0.png").symlink_to("/nowhere/0.png")
    Path("list.txt").write_text("photos/cats/0.png 7\n")
    write_pictures(Path(), "wide.png", size=(20, 40))
    Path("sizes.txt").write_text("wide.png 0\nphotos/cats/0.png 1\n")


def looking(*paths: str, image_list: str | None = None, use: Callable[[Found], object] = lambda _: None) -> Scenario:
    def scenario(folder: Path) -> object:
        _files()
        return use(source_of(list(paths), image_list=Path(image_list) if image_list else None))

    return scenario


def opening(*paths: str) -> Scenario:
    return looking(*paths, use=lambda found: found.open().close())


def packing(path: str, target: str = "packed.h5", layout: Layout = Layout()) -> Scenario:  # noqa: B008 - it is frozen
    def use(found: Found) -> None:
        try:
            pack(found, Path(target), layout, loaders=0, progress=lambda *_: None)
        finally:
            assert not list(Path().glob("packed*"))

    return looking(path, use=use)


def _chunk_of_4_gib(folder: Path) -> object:
    """The file has holes in place of its zeros."""
    np.lib.format.open_memmap(folder / "large.npy", "w+", np.uint8, (1 << 12, 1 << 20))
    try:
        return packing("large.npy", layout=Layout(chunk=1 << 12))(folder)
    finally:
        (folder / "large.npy").unlink()


def keeping(labels: str = "3", content: bytes | None = b"", files: int = 1, **options: Any) -> Scenario:
    """Pack pictures as they are; `content`: of the last file, which is not there if it is None."""

    def scenario(folder: Path) -> None:
        listed = write_list(folder, {f"{n}.png": encoded(picture(8, 8), ".png") for n in range(files)}, labels=labels)
        last = folder / f"{files - 1}.png"
        if content is None:
            last.unlink()
        elif files > 1:
            last.write_bytes(content)
        declared = {"path": str(listed), "root_folder": str(folder), "equal_sizes": True, **options}
        pack_encoded(Found({"image_list": declared}), folder / "a.lmdb", lambda *_: None)

    return scenario


def _packing_twice(found: Found) -> None:
    """Pack while another run packs to the same path."""

    def run(meanwhile: Callable[[], None]) -> None:
        pack(found, Path("packed.h5"), Layout(), loaders=0, progress=lambda *_: meanwhile())

    run(lambda: run(lambda: None))


_RUN = "{source: {npy: {data: x.npy}}, batch_size: 2}"


def numbered(batches: str) -> Scenario:
    """`blobfeed which` with these `batches`."""

    def scenario(folder: Path) -> object:
        _files()
        return batches_of(_RUN, None, batches)

    return scenario


def stated(text: str) -> Scenario:
    """`blobfeed which` with `text` as the state."""

    def scenario(folder: Path) -> object:
        _files()
        Path("state.json").write_text(text)
        return batches_of(_RUN, Path("state.json"), "")

    return scenario


def logged(text: str) -> Scenario:
    def scenario(folder: Path) -> object:
        (folder / "a.csv").write_text(text)
        return read_losses(folder / "a.csv")

    return scenario


def _over(path: str) -> Scenario:
    """Pack to a path at which something lies."""

    def scenario(folder: Path) -> object:
        (folder / path).write_text("no database" * 1000)
        if path.endswith(".h5"):
            return packing("x.npy", path)(folder)
        return keeping()(folder)

    return scenario


SCENARIOS: dict[str, Scenario] = {
    "no file": looking("none.h5"),
    "no data": looking("x.npy", "a.bin"),
    "two kinds": looking("x.npy", "x.npz"),
    "an empty folder": looking("empty"),
    "an empty file": looking("empty.txt"),
    "a table of fields": looking("a.h5"),
    "a compressed archive": looking("a.tar.gz"),
    "text": looking("words.txt"),
    "CSV": looking("table.csv"),
    "two texts": looking("list.txt", "table.csv"),
    "a folder of texts beside a picture": looking("captions"),
    "single numbers": looking("one.h5"),
    "a net": looking("net.prototxt"),
    "a cut HDF5 file": looking("cut.h5"),
    "a damaged HDF5 file": looking("damaged.h5"),
    "a damaged npz file": looking("damaged.npz"),
    "a LevelDB": looking("old"),
    "one top from two files": looking("first/train.npy", "second/train.npy"),
    "a cut IDX file": opening("cut.idx"),
    "an IDX file of an unknown type": opening("type.idx"),
    "an IDX file with half a header": opening("header.idx"),
    "pictures beside classes": looking("mixed", image_list="all.txt"),
    "a list over another": looking("photos", image_list="list.txt"),
    "a list in no folder": looking("photos", image_list="none/all.txt"),
    "a name of two lines": looking("lines", image_list="all.txt"),
    "a lost picture": looking("lost", image_list="all.txt"),
    "a declaration of two kinds": looking("{npy: {}, hdf5: {}}"),
    "half a declaration": looking("{npy: "),
    "a declaration without options": opening("{tar: [a.tar, b.tar]}"),
    "a declaration without tops": opening("{npy: x.npy}"),
    "pack, a fraction as uint8": packing("half.npy", layout=Layout(uint8=("data",))),
    "pack, an unknown top": packing("half.npy", layout=Layout(uint8=("date",))),
    "pack, channels last": packing("last.npy", layout=Layout(size=(8, 8))),
    "pack, text": packing("text.npy"),
    "pack, samples of several sizes": packing("varying.h5"),
    "pack, no folder": packing("x.npy", "none/packed.h5"),
    "pack, no place": packing("x.npy", "/proc/packed.h5"),
    "pack, another kind of file": packing("x.npy", "packed.npy"),
    "pack, over another file": _over("a.h5"),
    "pack, two runs at a time": looking("x.npy", use=_packing_twice),
    "pack, a chunk of 4 GiB": _chunk_of_4_gib,
    "keep, over another file": _over("a.lmdb.part"),
    "keep, a label of 33 bits": keeping("3000000000"),
    "keep, a label of a half": keeping("0.5"),
    "keep, EXIF": keeping(exif=True),
    "keep, a size": keeping(equal_sizes=False, new_height=4, new_width=4),
    "keep, no file": keeping(content=None, files=3, check_files=False),
    "keep, an empty file": keeping(files=3, check_files=False),
    "keep, two lists": looking(
        "{image_list: [a.txt, b.txt]}", use=lambda found: pack_encoded(found, Path("a.lmdb"), lambda *_: None)
    ),
    "pack, two lists": packing("{image_list: [a.txt, b.txt]}", layout=Layout(size=(8, 8))),
    "keep, arrays": looking("x.npy", use=lambda found: pack_encoded(found, Path("a.lmdb"), lambda *_: None)),
    "pack, pictures of several sizes": packing("{image_list: {path: sizes.txt, shorter_side: 9}}"),
    "params, a misspelt name": lambda _: as_text("transfrom"),
    "which, an empty state": stated("{}"),
    "which, a list for a state": stated("[1]"),
    "which, batches backwards": numbered("12..10"),
    "report, no batch": lambda _: run_facts({"traceEvents": []}),
    "report, words for losses": logged("iteration,loss\n1,high\n"),
    "report, no losses": logged("nothing\n"),
}

ERRORS = Catalogue(Path(__file__).with_name("errors.txt"), SCENARIOS)


@pytest.mark.parametrize("name", ERRORS.scenarios)
def test_the_error_is_the_one_in_the_catalogue(
    name: str, tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ERRORS.check(name, tmp_path, update=pytestconfig.getoption("--update"))


def test_the_catalogue_has_these_scenarios_and_no_others() -> None:
    ERRORS.check_names()
