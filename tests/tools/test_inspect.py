"""What `blobfeed inspect` prints, its advice, and the contact sheet."""

from __future__ import annotations

import fcntl
from itertools import chain
from pathlib import Path
from typing import Any

import cv2
import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
import yaml
from blobfeed.readers.opening import make_plan
from blobfeed.tools.examine import Facts, Labels, Storage, examine
from blobfeed.tools.inspecting import advise
from blobfeed.tools.recognise import source_of
from blobfeed.tools.sheet import Seen, class_names, drawn, look
from blobfeed.workers.api import Hooks, check_parameters

from blobfeed import ArraySpec, BatchReader
from tests.support.commands import output_of, run
from tests.support.object_servers import range_server
from tests.support.pictures import encoded, picture, write_list, write_pictures
from tests.support.tars import write_tar
from tests.support.training import importing_leaves_no_trace

__all__ = ["importing_leaves_no_trace"]

EXAMPLES = Path(__file__).resolve().parents[2] / "prototxt_examples"
RNG = np.random.default_rng(0)


@pytest.fixture
def gzipped(tmp_path: Path) -> Path:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        data = np.repeat(RNG.integers(0, 256, (60, 1, 8, 8)), 2, axis=0).astype(np.float32)
        file.create_dataset(
            "data", data=data, chunks=(16, 1, 8, 8), compression="gzip", compression_opts=9, shuffle=True
        )
        label = np.repeat([0, 1, 2], [100, 10, 10])
        file.create_dataset("label", data=label, chunks=(40,), compression="gzip")
    return path


# ---- what is printed


def test_it_prints_what_is_there_and_the_line_to_paste(gzipped: Path) -> None:
    shown = output_of("inspect", gzipped, "--seconds", 0)
    lines = shown.splitlines()
    assert lines[0] == "hdf5: 120 samples of 264 bytes"
    assert any(
        " ".join(line.split()).startswith("data 1×8×8 float32 chunks of 16×1×8×8, byte shuffle + gzip 9")
        for line in lines
    )
    assert "label: 3 classes: 0: 100, 1: 10, 2: 10" in lines
    assert lines[-1] == f"source: {{hdf5: {{path: {gzipped}}}}}"
    advice = "\n".join(line for line in lines if line.startswith("→"))
    assert "`blobfeed pack --uint8 data` takes 4 times less space" in advice
    assert "label 1 is 10 times rarer than 0: `sampler: {balance: label}`" in advice
    assert "the samples lie ordered by label" in advice


def test_the_ratio_of_compression_is_of_the_file_that_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("data", data=RNG.random((64, 16)), chunks=(64, 16), fletcher32=True)
    result = run("inspect", tmp_path / "a.h5", tmp_path / "b.h5", "--seconds", 0)
    assert "(1:1)" in result.stdout
    assert "(1:1)" in output_of(
        "inspect", f"{{hdf5: {{path: {tmp_path / 'a.h5'}, limit: 8}}}}", "--tops", "data", "--seconds", 0
    )


def test_it_measures_each_order(gzipped: Path) -> None:
    facts = examine(source_of([str(gzipped)]), seconds=0.02, shown=1)
    assert set(facts.rates) == {
        "in order",
        "by chunks (shuffle: chunk)",
        "shuffled (shuffle: true)",
        "packed, shuffled",
    }
    assert all(rate > 0 for rate in facts.rates.values())
    assert facts.packed_samples == facts.samples == 120
    result = run("inspect", gzipped, "--seconds", 0.02)
    assert "one process reads" in result.stdout


def test_many_tops_are_told_in_full_and_nothing_is_cut_in_a_pipe(tmp_path: Path) -> None:
    names = [f"a_rather_long_name_{letter}" for letter in "abcdefghijkl"]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in names:
            file[name] = np.full((4, 2), 0.1, np.float32)
        file["a label"] = np.array([2**63, 2**63, 1, 1], np.uint64)
    shown = output_of("inspect", tmp_path / "a.h5", "--seconds", 0, columns=40)
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    assert all(f"{name} 2 float32 contiguous 32 bytes" in rows for name in names)
    assert sum(row.endswith("0.1, 0.1") for row in rows) == 3 * len(names)
    assert "a label: 2 classes: 1: 2, 9223372036854775808: 2" in rows


def test_the_line_to_paste_has_the_path_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "Züge, 1.npy"
    np.save(path, RNG.random((4, 2)))
    line = output_of("inspect", path, "--seconds", 0).splitlines()[-1]
    assert yaml.safe_load(line) == {"source": {"npy": {"data": str(path)}}}
    assert '"' not in line  # it would end a param_str


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (("--parameters", "{transform: {mirror: true}}"), "give --sheet FILE, too"),
        (("--loaders", 2), "give --bench, too"),
        (("--bench", "--sheet", "sheet.png"), "give one of them"),
    ],
)
def test_options_that_would_have_no_effect_are_a_usage_error(
    options: tuple[str | int, ...], advice: str, gzipped: Path
) -> None:
    result = run("inspect", gzipped, *options)
    assert (result.exit_code, advice in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("content", "sizes", "message"),
    [
        (b"no picture", "new_height: 8, new_width: 8", "bad.png cannot be read"),
        (encoded(picture(9, 8), ".png"), "max_height: 8", "bad.png: "),
    ],
    ids=["damaged", "too large"],
)
def test_samples_that_cannot_be_read_are_named_and_the_others_counted(
    content: bytes, sizes: str, message: str, tmp_path: Path
) -> None:
    pictures = {f"{n}.png": encoded(picture(8, 8), ".png") for n in range(5)} | {"bad.png": content}
    options = f"path: {write_list(tmp_path, pictures)}, root_folder: {tmp_path}, {sizes}"
    found = source_of([f"{{image_list: {{{options}}}}}"])
    facts = examine(found, seconds=0.02, shown=10)
    assert list(facts.bad) == [5]
    assert message in facts.bad[5]  # its text alone: an error keeps the sample's bytes, by its traceback
    assert len(facts.first) == 5
    assert any(message in sentence and "on_error: replace" in sentence for sentence in advise(facts))


@pytest.mark.parametrize(
    ("top", "bad", "chunk_samples"), [("data", range(16, 20), range(16, 32)), ("label", range(40, 80), range(40, 80))]
)
def test_the_samples_of_a_damaged_chunk_are_told_one_by_one(
    top: str, bad: range, chunk_samples: range, gzipped: Path
) -> None:
    with h5py.File(gzipped) as file:
        chunk = file[top].id.get_chunk_info(1)
    with gzipped.open("r+b") as stream:
        stream.seek(chunk.byte_offset)
        stream.write(bytes(chunk.size))
    found = set(examine(source_of([str(gzipped)]), seconds=0, shown=20).bad)
    assert set(bad) <= found <= set(chunk_samples)  # of those behind the shown ones, some are looked at


def test_a_file_that_another_process_has_locked_is_examined_if_locking_is_off(gzipped: Path) -> None:
    with gzipped.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        output_of("inspect", f"{{hdf5: {{path: {gzipped}, locking: false}}}}", "--seconds", 0)


def test_a_file_in_object_storage_is_examined_too(
    gzipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with range_server() as server:
        server.objects["a.h5"] = gzipped.read_bytes()
        shown = output_of("inspect", f"{{hdf5: '{server.url('a.h5')}'}}", "--seconds", 0)
    assert "chunks of 16×1×8×8, byte shuffle + gzip 9" in shown


def test_a_label_that_cannot_be_read_is_told_too(tmp_path: Path) -> None:
    image = encoded(picture(8, 8), ".png")
    members = [((f"{n}.png", image), (f"{n}.cls", label)) for n, label in enumerate((b"0", b"1", b"0", b"x"))]
    write_tar(tmp_path / "a.tar", chain.from_iterable(members))
    shown = " ".join(output_of("inspect", tmp_path / "a.tar", "--seconds", 0, "--samples", 1).split())
    assert "3.cls cannot be read" in shown
    assert "on_error: replace" in shown


def test_names_that_look_like_markup_are_printed_as_they_are(tmp_path: Path) -> None:
    write_pictures(tmp_path, "[bold]/1.png", "[x]/1.png", ":cat:/1.png")
    shown = output_of("inspect", tmp_path, "--list", tmp_path / "all.txt", "--seconds", 0)
    assert all(f" {name}" in shown for name in ("[bold]", "[x]", ":cat:"))


def test_data_sets_that_are_samples_with_a_class_each_may_be_empty(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(12):
            file[f"event_{number}"] = np.ones((number % 3, 2), np.float32)
            file[f"event_{number}"].attrs["cls"] = number % 2
    result = run("inspect", tmp_path / "a.h5", "--seconds", 0)
    assert "cls: 2 classes: 0: 6, 1: 6" in result.stdout.splitlines(), result.output
    source = {"hdf5_samples": {"path": str(tmp_path / "a.h5"), "labels": ["cls"]}}
    balance = {"sampler": {"balance": "cls"}, "pad": {"value": 0}, "num_loaders": 0}
    with BatchReader(source, batch_size=12, epochs=1, **balance) as reader:  # type: ignore[arg-type]
        assert sorted(next(iter(reader))["cls"].tolist()) == [0] * 6 + [1] * 6


def test_of_a_virtual_data_set_no_storage_is_told(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file["data"] = np.arange(4)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        layout = h5py.VirtualLayout((4,), np.int64)
        layout[:] = h5py.VirtualSource(tmp_path / "part.h5", "data", (4,))
        file.create_virtual_dataset("data", layout)
    assert not examine(source_of([str(tmp_path / "a.h5")]), seconds=0, shown=1).storage


# ---- advice, pure


def facts(**changed: object) -> Facts:
    given: dict[str, object] = {
        "kind": "hdf5",
        "samples": 1000,
        "specs": {"data": ArraySpec((3, 4, 4), np.dtype(np.uint8)), "label": ArraySpec((), np.dtype(np.int64))},
    }
    return Facts(**{**given, **changed})  # type: ignore[arg-type]


def test_slow_chunks_are_told_with_their_factor() -> None:
    rates = {"by chunks (shuffle: chunk)": 1400.0, "shuffled (shuffle: true)": 100.0, "packed, shuffled": 3000.0}
    told = advise(facts(rates=rates, storage={"data": Storage((64, 3, 4, 4), "gzip 9", 100, 400)}, packed_samples=500))
    assert (
        told[0]
        == "data lies in chunks of 64×3×4×4, gzip 9: `shuffle: chunk` reads 14 times faster than `shuffle: true`"
    )
    assert "`blobfeed pack` makes shuffled reading 30 times faster (measured on the first 500 samples" in told[1]
    assert told[1].endswith("the file would have 56.0 kB")
    told = advise(facts(kind="zarr", rates=rates))
    assert told[0] == "samples are decoded by chunks: `shuffle: chunk` reads 14 times faster than `shuffle: true`"
    assert told[1].startswith("samples are decoded by chunks: `blobfeed pack` makes shuffled reading 30 times faster")


FAST = {"shuffled (shuffle: true)": 100.0, "packed, shuffled": 3000.0}


@pytest.mark.parametrize(
    "seen",
    [
        {"rates": FAST, "storage": {"data": Storage(None, "", 100, 100)}},
        {"rates": FAST, "kind": "npy"},
        {"labels": {"label": Labels({0: 50, 1: 60}, 110, False)}},
    ],
)
def test_what_is_fast_already_and_balanced_gets_no_advice(seen: dict[str, Any]) -> None:
    assert advise(facts(**seen)) == []


@pytest.mark.parametrize("varies", [False, True])
def test_samples_that_differ_in_size_get_no_advice_to_pack_them(varies: bool) -> None:
    spec = ArraySpec((5,), np.dtype(np.float32), varies)
    told = advise(facts(specs={"data": spec}, some=[{"data": np.arange(5, dtype=np.float32)}]))
    assert bool(told) is not varies


def test_uint8_is_advised_once_for_all_arrays_and_never_for_labels() -> None:
    floats = ArraySpec((2,), np.dtype(np.float32))
    specs = {"data": floats, "mask": floats, "labels": floats, "one": ArraySpec((1,), np.dtype(np.float64))}
    some = [dict.fromkeys(specs, np.array([0.0, 200.0])), dict.fromkeys(specs, np.array([3.0, 4.0]))]
    (sentence,) = advise(facts(specs=specs, some=some))
    assert "data, mask are float32" in sentence
    assert "`blobfeed pack --uint8 data --uint8 mask` takes 4 times less" in sentence


def test_the_last_and_random_samples_speak_against_uint8_too(tmp_path: Path) -> None:
    data = np.full((200, 4), 7.0, np.float32)
    for changed in (199, slice(50, 150)):
        data[changed] = 458
        np.save(tmp_path / "a.npy", data)
        facts_of = examine(source_of([str(tmp_path / "a.npy")]), seconds=0, shown=3)
        assert not [sentence for sentence in advise(facts_of) if "--uint8" in sentence]
        data[changed] = 7


# ---- the contact sheet


def test_the_sheet_has_what_a_reader_delivers(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"] = RNG.integers(0, 256, (6, 3, 12, 12), np.uint8)
        file["label"] = np.arange(6)
        file["name"] = np.array([f"cat {number}" for number in range(6)], "S8")
    given = {
        "batch_size": 6,
        "transform": {"crop_size": 8, "mirror": True, "mean_value": [1.0, 2.0, 3.0], "scale": 0.5},
    }
    source = source_of([str(tmp_path / "a.h5")]).open()
    plan = make_plan(check_parameters({"source": {"hdf5": {}}, **given}), Hooks(), tmp_path, True, source)
    seen = look(plan, tmp_path, is_bgr=False)
    source.close()
    with BatchReader({"hdf5": {"path": tmp_path / "a.h5"}}, num_loaders=1, epochs=None, **given) as reader:  # type: ignore[arg-type]
        for epoch, batch in zip(range(len(seen.pictures)), reader, strict=False):
            assert (np.stack(seen.pictures[epoch]) == batch["data"]).all()
    assert len(seen.pictures) == 6
    assert seen.captions == [f"#{number} label {number}, name cat {number}" for number in range(6)]


@pytest.mark.parametrize("listed", [True, False])
def test_the_sheet_names_the_classes_of_folders(tmp_path: Path, listed: bool) -> None:
    write_pictures(tmp_path, "pets/cat/a.png", "pets/dog/a.png")
    found = source_of([str(tmp_path / "pets")], None, tmp_path / "train.txt" if listed else None)
    source = found.open()
    plan = make_plan(check_parameters({"source": found.declared, "batch_size": 2}), Hooks(), tmp_path, True, source)
    seen = look(plan, tmp_path, is_bgr=True, classes=class_names(found.declared, tmp_path))
    source.close()
    assert seen.captions == ["#0 label 0 cat", "#1 label 1 dog"]
    assert class_names({"image_list": str(tmp_path / "none" / "train.txt")}, tmp_path) == ()
    assert class_names({"hdf5": {"path": "train.h5"}}, tmp_path) == ()


def test_texts_stand_beside_their_pictures_whatever_their_type(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", data=np.zeros((2, 3, 8, 8), np.uint8), name=np.array(["cat", "dög"]))
    output_of("inspect", tmp_path / "a.npz", "--tops", "data,name", "--sheet", tmp_path / "sheet.png")


WHITE, BLACK = np.full((3, 32, 32), 255, np.uint8), np.zeros((3, 32, 32), np.uint8)
BLUE = np.stack([WHITE[0], BLACK[0], BLACK[0]])
UPPER = np.where(np.arange(32)[:, None] < 16, 0.0, 1.0) * np.ones((3, 32, 32))
ODD = np.full((3, 32, 32), np.nan)
ODD[:, 0, 0] = np.inf
CELL = 128 * 128
"""Pixels of a picture on the sheet."""

DRAWN: list[tuple[list[Any], bool, tuple[int, int, int], int]] = [
    # pictures, whether they are BGR, a colour of the sheet in RGB, and how many pixels have it
    ([WHITE, BLUE], True, (255, 0, 0), CELL),
    ([WHITE, BLUE], False, (0, 0, 255), CELL),
    ([WHITE - 100.0, BLACK - 100.0], True, (0, 0, 0), CELL),  # stretched
    ([ODD, UPPER], True, (255, 255, 255), CELL // 2 + 4 * 4),  # what is no number is black, and spoils no other one
    ([np.full((1, 32, 32), 1.0)], True, (0, 0, 0), CELL),  # of one value
    ([np.full((1, 32, 32), 65535.0)], True, (0, 0, 0), CELL),
    ([UPPER[:1] * np.complex64(1 + 1j)], True, (255, 255, 255), CELL // 2),
]


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize(("pictures", "is_bgr", "color", "pixels"), DRAWN)
def test_uint8_pictures_are_drawn_as_they_are_and_others_stretched(
    pictures: list[Any], is_bgr: bool, color: tuple[int, int, int], pixels: int
) -> None:
    sheet = drawn(Seen([pictures], [f"#{number}" for number in range(len(pictures))], is_bgr=is_bgr))
    assert (sheet == color).all(axis=2).sum() == pixels


def test_a_net_definition_shows_what_its_own_layer_makes_with_and_without_parameters(tmp_path: Path) -> None:
    sheets: list[Any] = []
    for more in ((), ("--parameters", "{shuffle: true}")):
        result = run("inspect", EXAMPLES / "augment" / "net.prototxt", "--sheet", tmp_path / "sheet.png", *more)
        assert "8 samples (rows) in 6 epochs (columns)" in result.stdout, result.output
        sheets.append(cv2.imread(str(tmp_path / "sheet.png")))
    assert sheets[0].shape[0] > 8 * 128
    assert (sheets[0] == sheets[1]).all()


def test_the_sheet_of_a_net_that_reads_rgb_has_the_colours_of_the_file(tmp_path: Path) -> None:
    blue = np.full((32, 32, 3), (255, 0, 0), np.uint8)
    listed = write_list(tmp_path, {"0.png": encoded(blue, ".png")})
    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { name: "data" type: "Python" top: "data" top: "label" python_param { module: "blobfeed.layers" '
        f'layer: "ImageListInputLayer" param_str: "{{path: {listed}, root_folder: {tmp_path}, color: rgb, '
        'equal_sizes: true, batch_size: 1}" } }'
    )
    output_of("inspect", net, "--sheet", tmp_path / "sheet.png")
    sheet = cv2.imread(str(tmp_path / "sheet.png"))
    assert sheet is not None
    assert (sheet == (255, 0, 0)).all(axis=2).sum() == 6 * 128 * 128


def test_what_is_no_picture_is_said(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 7)))
    result = run("inspect", tmp_path / "x.npy", "--sheet", tmp_path / "sheet.png")
    assert "none of the tops is a picture of one or three channels: data (7,)" in result.stderr
    assert (
        "--parameters: expected a mapping"
        in run("inspect", tmp_path / "x.npy", "--sheet", "s.png", "--parameters", "[1]").stderr
    )
