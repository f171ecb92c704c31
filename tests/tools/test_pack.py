"""`blobfeed pack` and `blobfeed inspect --bench`: what is packed is read back equal, whatever happens meanwhile."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import h5py  # type: ignore[import-untyped]
import lmdb
import numpy as np
import pytest
import yaml
from blobfeed.tools import benching, packing
from blobfeed.tools.found import Found, in_yaml
from blobfeed.tools.packing import Layout, Packed, pack, pack_encoded
from blobfeed.tools.recognise import source_of

from blobfeed import BatchReader, ParameterError, SampleError, SourceError
from tests.support.commands import error_of, output_of, run
from tests.support.datums import raw_datum, write_lmdb
from tests.support.pictures import encoded, picture, write_list
from tests.support.tars import write_tar

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
SAMPLES = 300
DATA = np.random.default_rng(0).integers(0, 200, (SAMPLES, 2, 30, 30), np.uint8)
LABEL = np.arange(SAMPLES) % 7


def told(step: str, done: int, samples: int) -> None:
    assert 0 <= done <= samples


def packed(found: Found, target: Path, layout: Layout = Layout()) -> Packed:  # noqa: B008 - it is frozen
    """Read in this process: test_in_process.py holds loaders to the same batches."""
    return pack(found, target, layout, loaders=0, progress=told)


@pytest.fixture
def found(tmp_path: Path) -> Found:
    np.save(tmp_path / "x.npy", DATA)
    np.save(tmp_path / "y.npy", LABEL)
    return source_of([str(tmp_path / "x.npy"), str(tmp_path / "y.npy")])


def everything(declared: Any, tops: Sequence[str] | None = None) -> dict[str, Any]:
    with BatchReader(declared, tops=tops, batch_size=64, epochs=1, last_batch="partial", num_loaders=0) as reader:
        batches = list(reader)
    return {top: np.concatenate([batch[top] for batch in batches]) for top in batches[0]}


def is_equal(path: Path, data: Any, label: Any) -> None:
    with h5py.File(path) as file:
        assert (file["data"][()] == data).all()
        assert (file["label"][()] == label).all()
    assert not list(path.parent.glob("*.part*"))


@pytest.mark.parametrize(
    ("layout", "chunks"),
    [
        (Layout(), None),
        (Layout(chunk=7), 7),
        (Layout(chunk=7, compression="gzip"), 7),
        (Layout(compression="lz4"), 36),
        (Layout(chunk=500, compression="zstd"), 300),
        (Layout(chunk=10**12), 300),
    ],
    ids=str,
)
def test_each_layout_is_read_back_equal(found: Found, tmp_path: Path, layout: Layout, chunks: int | None) -> None:
    pytest.importorskip("hdf5plugin")
    made = packed(found, tmp_path / "packed.h5", layout)
    assert (made.samples, made.resumed) == (SAMPLES, 0)
    is_equal(tmp_path / "packed.h5", DATA, LABEL)
    with h5py.File(tmp_path / "packed.h5") as file:
        assert (file["data"].chunks or (None,))[0] == chunks
        assert file["data"].fletcher32 == (layout.compression in ("lz4", "zstd"))
        assert file.attrs["packed_from"].startswith("{npy: {data: ")


def test_a_job_of_several_ranks_packs_and_times_all_samples(
    found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    packed(found, tmp_path / "a.h5")
    is_equal(tmp_path / "a.h5", DATA, LABEL)
    monkeypatch.delenv("RANK")  # half of a shard is refused if it is looked at
    assert "blobfeed, shuffle: true" in output_of(
        "inspect", "--bench", tmp_path / "a.h5", "--seconds", 0.1, "--loaders", 1
    )


@pytest.mark.parametrize("options", [("--uint8", "data", "--uint8", "mask"), ("--uint8", "data,mask")])
def test_all_arrays_that_are_named_become_uint8(tmp_path: Path, options: tuple[str, ...]) -> None:
    np.savez(tmp_path / "x.npz", data=DATA[:4].astype(np.float32), mask=DATA[4:8].astype(np.float32))
    output_of("pack", tmp_path / "x.npz", tmp_path / "a.h5", "--tops", "data,mask", *options)
    with h5py.File(tmp_path / "a.h5") as file:
        assert (file["data"].dtype, file["mask"].dtype) == (np.uint8, np.uint8)


def test_whole_floats_become_uint8_and_others_are_refused(tmp_path: Path) -> None:
    values = DATA[:20].astype(np.float32)
    np.save(tmp_path / "x.npy", values)
    found = source_of([str(tmp_path / "x.npy")])
    packed(found, tmp_path / "a.h5", Layout(uint8=("data",)))
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["data"].dtype == np.uint8
        assert (file["data"][()] == values).all()
    values[7, 0, 0, 0] = 0.5
    np.save(tmp_path / "x.npy", values)
    with pytest.raises(SampleError) as caught:
        packed(source_of([str(tmp_path / "x.npy")]), tmp_path / "b.h5", Layout(uint8=("data",)))
    assert caught.value.index == 7
    assert str(caught.value).endswith("leave out --uint8 data")


def test_pictures_are_resized_by_their_source_or_by_a_hook(tmp_path: Path) -> None:
    files = {f"{n}.png": encoded(picture(20 + n, 30), ".png") for n in range(5)}
    listed = Found(
        {"image_list": {"path": str(write_list(tmp_path, files)), "root_folder": str(tmp_path), "shorter_side": 9}}
    )
    packed(listed, tmp_path / "a.h5", Layout(size=(8, 12)))
    resized = {**listed.declared["image_list"], "shorter_side": 0, "new_height": 8, "new_width": 12}
    is_equal(tmp_path / "a.h5", everything({"image_list": resized})["data"], np.arange(5))
    raw = (raw_datum(np.ascontiguousarray(picture(24, 36).transpose(2, 0, 1)), n) for n in range(4))
    packed(source_of([str(write_lmdb(tmp_path / "db", raw))]), tmp_path / "b.h5", Layout(size=(8, 12)))
    small = cv2.resize(picture(24, 36), (12, 8), interpolation=cv2.INTER_AREA).transpose(2, 0, 1)
    is_equal(tmp_path / "b.h5", np.stack([small] * 4), np.arange(4))
    assert [source_of([str(tmp_path / name)]).color for name in ("a.h5", "b.h5")] == ["rgb", "bgr"]


def test_pictures_of_a_tar_are_resized_from_their_full_size(tmp_path: Path) -> None:
    contents = (encoded(picture(*size), ".png") for size in [(40, 60), (50, 70)])
    write_tar(tmp_path / "a.tar", ((f"{number}.png", content) for number, content in enumerate(contents)))
    found = source_of([str(tmp_path / "a.tar")])
    assert found.declared["tar"]["shorter_side"] < 40
    packed(found, tmp_path / "a.h5", Layout(size=(40, 40)))
    wanted = everything({"tar": {"path": tmp_path / "a.tar", "new_height": 40, "new_width": 40}})
    with h5py.File(tmp_path / "a.h5") as file:
        assert (file["data"][()] == wanted["png"]).all()


# ---- interrupted


class Enough(Exception):
    pass


def interrupted(found: Found, target: Path, at: int, layout: Layout) -> None:
    def stop(step: str, done: int, samples: int) -> None:
        if step == "packing" and done >= at:
            raise Enough

    with pytest.raises(Enough):
        pack(found, target, layout, loaders=0, progress=stop)


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Found, Any]:
    """Four batches of ten samples."""
    monkeypatch.setattr(packing, "_BATCH_BYTES", 10 * 3 * 64 * 64)
    data = np.random.default_rng(1).integers(0, 9, (40, 3, 64, 64), np.uint8)
    np.save(tmp_path / "large.npy", data)
    return source_of([str(tmp_path / "large.npy")]), data


def loses_sample_17(part: Path) -> None:
    with h5py.File(part, "r+") as file:
        file["data"][17] = 0


@pytest.mark.parametrize(
    ("layout", "meanwhile", "goes_on_with", "resumed"),
    [
        (Layout(), Path.exists, Layout(), 20),
        (Layout(chunk=2, compression="gzip"), Path.exists, Layout(chunk=2, compression="gzip"), 20),
        (Layout(), loses_sample_17, Layout(), 10),
        (Layout(), lambda part: part.write_bytes(bytes(1000)), Layout(), 0),  # HDF5 cannot open it any more
        (Layout(), Path.exists, Layout(chunk=1), 0),
    ],
)
def test_an_interrupted_run_goes_on_where_the_file_is_whole(
    large: tuple[Found, Any],
    tmp_path: Path,
    layout: Layout,
    meanwhile: Callable[[Path], object],
    goes_on_with: Layout,
    resumed: int,
) -> None:
    found, data = large
    interrupted(found, tmp_path / "a.h5", 20, layout)
    assert not (tmp_path / "a.h5").exists()
    meanwhile(tmp_path / "a.h5.part")
    assert packed(found, tmp_path / "a.h5", goes_on_with).resumed == resumed
    assert (everything({"hdf5": {"path": tmp_path / "a.h5"}}, ["data"])["data"] == data).all()


KILLED = """
import os, signal, sys
from pathlib import Path
from blobfeed.tools.packing import Layout, pack
from blobfeed.tools import packing
from blobfeed.tools.recognise import source_of

packing._BATCH_BYTES = 10 * 3 * 64 * 64

def told(step, done, samples):
    if step == "packing" and done >= 20:
        os.kill(os.getpid(), signal.SIGKILL)

pack(source_of([sys.argv[1]]), Path(sys.argv[2]), Layout(chunk=2, compression="gzip"), loaders=0, progress=told)
"""


def test_a_run_that_is_killed_loses_no_sample(large: tuple[Found, Any], tmp_path: Path) -> None:
    found, data = large
    arguments = [found.declared["npy"]["data"], str(tmp_path / "a.h5")]
    run = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, timeout=100)
    assert run.returncode == -signal.SIGKILL
    packed(found, tmp_path / "a.h5", Layout(chunk=2, compression="gzip"))
    assert (everything({"hdf5": {"path": tmp_path / "a.h5"}}, ["data"])["data"] == data).all()


def test_a_full_disk_is_told_in_short_and_packing_goes_on_when_there_is_room(
    large: tuple[Found, Any], tmp_path: Path
) -> None:
    found, data = large
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(step: str, done: int, samples: int) -> None:
        if done >= 10:
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))

    try:
        with pytest.raises(ParameterError, match=r"a\.h5\.part"):
            pack(found, tmp_path / "a.h5", Layout(), loaders=0, progress=full)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert packed(found, tmp_path / "a.h5").resumed == 10
    assert (everything({"hdf5": {"path": tmp_path / "a.h5"}}, ["data"])["data"] == data).all()


@pytest.mark.parametrize("name", ["a.h5", "a.lmdb"])
def test_two_runs_at_a_time_do_not_write_one_file(tmp_path: Path, name: str) -> None:
    listed = write_list(tmp_path, {"0.png": encoded(picture(8, 8), ".png")})
    found = Found({"image_list": {"path": str(listed), "root_folder": str(tmp_path), "equal_sizes": True}})
    refusals: list[object] = []

    def run(meanwhile: packing.Progress) -> Packed:
        if name == "a.lmdb":
            return pack_encoded(found, tmp_path / name, meanwhile)
        return pack(found, tmp_path / name, Layout(), loaders=0, progress=meanwhile)

    def second(step: str, done: int, samples: int) -> None:
        if done and not refusals:
            with pytest.raises(ParameterError, match=name) as refusal:
                run(told)
            refusals.append(refusal)

    assert run(second).samples == len(refusals) == 1
    assert [path.name for path in tmp_path.glob("a.*")] == [name]


def test_a_file_that_is_there_is_left_alone(found: Found, tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_text("precious")
    with pytest.raises(ParameterError):
        packed(found, tmp_path / "a.h5")
    assert (tmp_path / "a.h5").read_text() == "precious"


# ---- pictures that stay encoded


@pytest.mark.parametrize("kind", ["image_list", "files"])
def test_encoded_pictures_keep_their_bytes_and_give_the_same_pixels(kind: str, tmp_path: Path) -> None:
    files = {f"{n}.{kind}": encoded(picture(20, 30 + n), f".{kind}") for n, kind in enumerate(("jpg", "png", "jpg"))}
    options = {"path": str(write_list(tmp_path, files)), "root_folder": str(tmp_path), "max_height": 64, "color": "rgb"}
    if kind == "files":
        options = {"path": f"{tmp_path}/?.*g", "labels": r"(\d)\.", "max_height": 64, "color": "rgb"}
    printed = output_of("pack", in_yaml({kind: options}), tmp_path / "a.lmdb")
    assert "3 samples" in printed
    environment = lmdb.open(str(tmp_path / "a.lmdb"), subdir=False, lock=False, readonly=True)
    with environment, environment.begin() as transaction:
        records = [bytes(value) for _, value in transaction.cursor()]
    assert all(content in record for content, record in zip(files.values(), records, strict=True))
    (line,) = (line for line in printed.splitlines() if line.startswith("source: "))
    pairs = []
    for declared in ({kind: options}, yaml.safe_load(line)["source"]):
        with BatchReader(declared, batch_size=1, epochs=1, num_loaders=0) as reader:
            pairs.append([(batch["data"], batch["label"]) for batch in reader])
    for (listed, label), (kept, other) in zip(*pairs, strict=True):
        assert (listed == kept).all()
        assert label == other


def test_records_of_a_longer_list_do_not_stay_in_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_RECORDS_AT_ONCE", 2)
    listed = write_list(tmp_path, {f"{n}.png": encoded(picture(8, 8), ".png") for n in range(6)})
    found = Found({"image_list": {"path": str(listed), "root_folder": str(tmp_path), "equal_sizes": True}})

    def interrupt(step: str, done: int, samples: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack_encoded(found, tmp_path / "a.lmdb", interrupt)
    lines = listed.read_text().splitlines(keepends=True)
    listed.write_text("".join(lines[:3]))
    with pytest.raises(SourceError, match=r"\b4\b.*\b3\b.*\.part"):
        pack_encoded(found, tmp_path / "a.lmdb", told)
    listed.write_text("".join(lines))
    assert pack_encoded(found, tmp_path / "a.lmdb", told).resumed == 4


@pytest.mark.parametrize("option", [("--tops", "data"), ("--loaders", 4), ("--chunk", 8)])
def test_an_option_for_arrays_is_not_ignored(tmp_path: Path, option: tuple[object, ...]) -> None:
    listed = write_list(tmp_path, {f"{tmp_path}/0.png": encoded(picture(8, 8), ".png")})
    assert "an LMDB keeps files as they are" in error_of("pack", listed, tmp_path / "a.lmdb", *option)


# ---- the commands, on real data


@pytest.fixture(autouse=True)
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benching, "_ROUNDS", 1)


@pytest.mark.skipif(not FASHION_MNIST.exists(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_is_packed_and_timed(tmp_path: Path) -> None:
    files = sorted(FASHION_MNIST.glob("t10k-*"))
    said = output_of("pack", *files, tmp_path / "a.h5")
    assert "10,000 samples" in said
    assert "read back and found equal" in said
    whole = everything({"idx": {"data": files[0], "label": files[1]}})
    is_equal(tmp_path / "a.h5", whole["data"], whole["label"])
    assert "blobfeed, shuffle: true" in output_of(
        "inspect", "--bench", tmp_path / "a.h5", "--seconds", 0.1, "--loaders", 1
    )


@pytest.mark.slow
def test_photographs_are_packed_and_timed(tmp_path: Path) -> None:
    skimage = pytest.importorskip("skimage", reason="scikit-image's photographs are not installed")
    originals = Path(skimage.__file__).parent / "data"
    (tmp_path / "photos").mkdir()
    for name in ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "retina.jpg"):
        shutil.copy(originals / name, tmp_path / "photos")
    listed = tmp_path / "list.txt"
    said = output_of(
        "pack", tmp_path / "photos", "--list", listed, tmp_path / "a.h5", "--resize", 64, "--compression", "gzip"
    )
    assert f"source: {{hdf5: {{path: {tmp_path / 'a.h5'}}}}}" in said
    expected = everything({"image_list": {"path": str(listed), "new_height": 64, "new_width": 64}})["data"]
    with h5py.File(tmp_path / "a.h5") as file:
        assert (file["data"][()] == expected).all()
    assert "blobfeed, shuffle: chunk" in output_of(
        "inspect", "--bench", tmp_path / "a.h5", "--seconds", 0.1, "--loaders", 1
    )


def test_the_bench_has_torch_beside_it(found: Found) -> None:
    pytest.importorskip("torch", reason="the comparison needs torch")
    files = [found.declared["npy"]["data"], found.declared["npy"]["label"]]
    lines = output_of("inspect", "--bench", *files, "--seconds", 0.1, "--loaders", 1).splitlines()
    assert lines[-1].split()[:2] == ["torch", "DataLoader,"]
    assert " 1.00× " in lines[-1]


@pytest.mark.slow
def test_the_bench_has_torch_beside_it_over_pictures_too_though_opencv_has_threads(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the comparison needs torch")
    listed = write_list(tmp_path, {f"{number}.jpg": encoded(picture(300, 300)) for number in range(8)})
    cv2.GaussianBlur(picture(300, 300), (5, 5), 0)  # begins OpenCV's threads, which forked workers do not have
    lines = output_of("inspect", "--bench", listed, "--seconds", 0.1, "--loaders", 1).splitlines()
    assert lines[-1].split()[:2] == ["torch", "DataLoader,"]


def test_the_bench_goes_on_without_torch_if_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("Caught in worker 0.\n\nunable to allocate shared memory(shm)")

    pytest.importorskip("torch", reason="else it is not tried")
    monkeypatch.setattr(benching, "_torch", fails)
    np.save(tmp_path / "x.npy", np.zeros((64, 3), np.float32))
    lines = output_of("inspect", "--bench", tmp_path / "x.npy", "--seconds", 0.1, "--loaders", 1).splitlines()
    assert any("one process, no loader" in line and "1.00×" in line for line in lines)
    assert lines[-1] == "torch's DataLoader is not timed: it failed: unable to allocate shared memory(shm)"


def test_the_bench_says_why_torch_is_not_beside_it(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="else it says that torch is not installed")
    np.save(tmp_path / "x.npy", np.zeros(8, np.complex64))
    lines = output_of("inspect", "--bench", tmp_path / "x.npy", "--seconds", 0.1, "--loaders", 1).splitlines()
    assert lines[-1] == "torch's DataLoader is not timed: samples differ in size, or are no real numbers"


def test_a_resize_without_opencv_says_what_to_install(
    found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blobfeed.workers.base.extras.is_installed", lambda library: library != "cv2")
    said = error_of("pack", found.declared["npy"]["data"], tmp_path / "a.h5", "--resize", 8)
    assert said == "blobfeed: error: --resize needs cv2, which is not installed: pip install 'blobfeed[images]'\n"


@pytest.mark.parametrize("size", ["x", "0x3", "3x", "-3"])
def test_a_size_that_is_none_is_said(found: Found, tmp_path: Path, size: str) -> None:
    arguments = ["pack", found.declared["npy"]["data"], str(tmp_path / "a.h5"), f"--resize={size}"]
    assert "expected HEIGHTxWIDTH" in run(*arguments).stderr


def test_the_tops_to_paste_stand_in_the_order_asked_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", data=DATA[:9], name=LABEL[:9], age=LABEL[:9])
    printed = output_of("pack", tmp_path / "x.npz", tmp_path / "a.h5", "--tops", "name,data,age")
    assert "tops: [name, data, age]" in printed


def test_many_arrays_of_like_names_stay_tops(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", *[LABEL[:9]] * 8)
    source, tops = map(yaml.safe_load, output_of("pack", tmp_path / "x.npz", tmp_path / "a.h5").splitlines()[-2:])
    assert {top: values.tolist() for top, values in everything(source["source"], tops["tops"]).items()} == {
        f"arr_{number}": LABEL[:9].tolist() for number in range(8)
    }
