"""The benchmarks' own parts: figures and tables are what they say, and the harness runs a work from end to end."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
from blobfeed.layers import standin
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import entrants, files_run, harness, published, report, works
from benchmarks import files as file_costs
from benchmarks.chart import chart
from benchmarks.datasets import HDF5_28, HDF5_CHUNKED, HDF5_SAMPLES, HDF5_SAMPLES_TEN, NPY_224, DataSet
from benchmarks.delivery import Shape, host_rows
from benchmarks.dlio import __main__ as dlio
from benchmarks.dlio.workloads import LOADERS, WORKLOADS
from benchmarks.harness import QUICK, Program, RunFailed, run_all, run_program
from benchmarks.job import Figures, Outcome, Result
from benchmarks.page_cache import drop, files
from benchmarks.photographs import crops, stamp, stamped
from benchmarks.run_one import check
from benchmarks.works import find_work

FIGURES = Figures(
    samples_per_s=1000.0,
    stall_s=0.002,
    trainer_cpu_s=30e-6,
    all_cpu_s=0.001,
    first_batch_s=0.2,
    first_second_per_s=800.0,
    longest_wait_s=0.2,
    own_bytes=100_000_000,
    shared_bytes=60_000_000,
    data_bytes=0,
    processes=4,
)


def measured(**changes: float) -> Result:
    return Result((replace(FIGURES, **changes),))  # type: ignore[arg-type]  # all fields are numbers


# ---- targets and tables

RESULTS = {
    ("hdf5_224", "blobfeed"): Result.of([Outcome(replace(FIGURES, samples_per_s=rate)) for rate in (910, 900, 30)]),
    ("hdf5_224", "blobfeed, BatchReader"): measured(samples_per_s=4500, first_second_per_s=450),
    ("hdf5_224", "spdl, pooled"): measured(samples_per_s=600, first_batch_s=1.0),
    ("hdf5_224", "torch"): measured(samples_per_s=200, first_batch_s=0.35),
    ("hdf5_224", "spdl"): measured(samples_per_s=3000, first_batch_s=0.01, own_bytes=20e6),
    ("hdf5_224", "tensorpack"): measured(samples_per_s=20.5, first_batch_s=50e-6),
    ("hdf5_224", "plain loop, batched"): measured(samples_per_s=1_234_567, first_batch_s=1e-6, own_bytes=1e6),
    ("hdf5_224", "grain"): Result.of([Outcome(reason="not installed: grain")]),
    ("npy_224", "spdl"): measured(samples_per_s=1e9),
}


def cells_of(table: str) -> list[list[str]]:
    rows = [line[2:-2].split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert len({*map(len, rows)}) == 1, table
    return rows[2:]


def test_the_summary_has_the_best_loader_in_bold_and_each_target_as_a_ratio_of_the_same_work() -> None:
    rate, memory = cells_of(report.summary([find_work("hdf5_224")], RESULTS))
    assert rate[1:7] == ["200/s", "–", "**spdl 3,000/s**", "900/s", "–", "gather –<br>plain loop, batched 1,230,000/s"]
    assert rate[7].startswith(
        "handed over ≥ 1.5 × spdl, pooled: 1.50, met<br>handed over ≥ 0.9 of gather: not measured"
    )
    assert "first second ≥ 0.7 of the rate: 0.10, **not met**" in rate[7]
    assert memory[1:5] == ["100 MB", "–", "**spdl 20 MB**", "100 MB"]
    assert memory[7] == "memory ≤ ring + 60 MB: 40 MB, met", "what is shared on purpose is left out"


def test_the_details_have_all_figures_of_an_entrant_or_why_there_are_none() -> None:
    ours, *_, failed = cells_of(report.details(find_work("hdf5_224"), RESULTS))
    assert ours[:6] == ["blobfeed", "900", "2.0 ms", "30 µs", "1.0 ms", "0.20 s"]
    assert ours[6:9] == ["800", "0.89", "0.20 s"]
    assert ours[9:] == ["100 MB", "60 MB", "0 MB", "98%", "4.50", "–"]
    assert failed[:2] == ["grain", "not installed: grain"]


def test_every_target_speaks_of_entrants_that_take_part_in_its_work() -> None:
    for work in works.WORKS:
        taking = {entrant.name for entrant in entrants.ENTRANTS if entrant.takes(work)}
        for target in work.targets:
            assert target.subject in taking, (work.name, target.text)
            assert taking.issuperset(target.against), (work.name, target.text)


def test_every_target_stands_in_one_row() -> None:
    for work in works.WORKS:
        listed = [target for row in report.rows_of(work) for target in row.targets()]
        assert sorted(target.text for target in listed) == sorted(target.text for target in work.targets)


def test_the_front_page_shows_the_figures_of_the_last_whole_run() -> None:
    figures = published.FIGURES.read_text()
    say = "run: python -m benchmarks.published"
    assert published.block_of(figures) in published.README.read_text(), say
    assert published.CHART.read_text() == chart(published.panels_of(figures)), say


# ---- data


@given(st.integers(0, 2**40))
def test_a_stamp_is_read_back(index: int) -> None:
    rows = np.zeros((2, 3, 4), np.uint8)
    stamp(rows[1], index)
    assert stamped(rows).tolist() == [0, index]


@pytest.mark.slow
def test_photographs_are_the_same_ones_each_time() -> None:
    first, again = list(crops(20, 30, 3)), list(crops(20, 30, 3))
    assert [crop.shape for crop in first] == [(20, 30, 3)] * 3
    assert np.array_equal(first, again)


@pytest.mark.parametrize(
    "data", [HDF5_28, HDF5_CHUNKED, NPY_224, HDF5_SAMPLES, HDF5_SAMPLES_TEN], ids=lambda data: data.name
)
def test_users_readers_give_the_same_one_by_one_and_by_the_batch(
    data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOBFEED_BENCH_DATA", str(tmp_path))
    reader = data.reader(data.ensure(10), 10, "uint8")
    together, labels = reader.many([5, 2, 7])
    assert labels.tolist() == [5, 2, 7]
    for row, index in enumerate([5, 2, 7]):
        sample, label = reader.one(index)
        assert label == index
        assert np.array_equal(sample, together[row])


@pytest.mark.parametrize("data", [HDF5_28, HDF5_CHUNKED, HDF5_SAMPLES], ids=lambda data: data.name)
def test_users_readers_ask_h5py_for_no_more_than_the_rows(
    data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that looks its data sets up by name for every sample is ten times as slow as its users have it."""
    monkeypatch.setenv("BLOBFEED_BENCH_DATA", str(tmp_path))
    path = data.ensure(16)
    calls = {"look-ups": 0, "reads": 0}

    def counted(owner: Any, what: str, name: str = "__getitem__") -> None:
        right = getattr(owner, name)

        def call(self: object, *given: object, **options: object) -> object:
            calls[what] += 1
            return right(self, *given, **options)

        monkeypatch.setattr(owner, name, call)

    counted(h5py.Group, "look-ups")
    counted(h5py.Dataset, "reads")
    counted(h5py.Dataset, "reads", "read_direct")
    for read in ("many",) if data is HDF5_SAMPLES else ("one", "many"):  # by name, as most read such a file
        reader = data.reader(path, 16, "uint8")
        getattr(reader, read)(3 if read == "one" else [3])
        calls.update(dict.fromkeys(calls, 0))
        if read == "one":
            [reader.one(index) for index in range(10)]
        else:
            reader.many(range(10))
        assert calls["look-ups"] == 0
        assert calls["reads"] <= 10


def test_a_data_set_that_could_not_be_finished_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOBFEED_BENCH_DATA", str(tmp_path))

    def fail(path: Path, samples: int) -> None:
        path.write_text("half of it")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        replace(HDF5_28, write=fail).ensure(8)
    assert list(tmp_path.iterdir()) == []


def test_a_control_group_that_cannot_be_removed_is_not_taken_for_one_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOBFEED_BENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(file_costs, "HDF5_224", replace(HDF5_28, quick_samples=128))
    monkeypatch.setattr(file_costs, "_GROUPS", tmp_path)
    monkeypatch.setattr(file_costs, "_ROUNDS", 1)
    (tmp_path / "cgroup.controllers").touch()
    with pytest.raises(OSError, match="not empty"):
        list(file_costs.larger(quick=True))


def test_dropping_a_folder_from_the_page_cache_reaches_every_file(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for name in ("a", "below/b"):
        (tmp_path / name).write_bytes(b"x" * 100)
    assert [file.name for file in files(tmp_path)] == ["a", "b"]
    drop(tmp_path)
    assert (tmp_path / "a").read_bytes() == b"x" * 100


def test_a_batch_that_is_not_what_was_asked_for_is_refused() -> None:
    work = replace(find_work("npy_224"), shape=(2, 4))
    rows = np.zeros((3, 2, 4), np.uint8)
    for row, index in enumerate([4, 0, 9]):
        stamp(rows[row], index)
    check(work, 10, (rows, np.array([4, 0, 9])))
    for labels in ([4, 0, 8], [4, 0, 10], [4, 0]):
        with pytest.raises(AssertionError):
            check(work, 10, (rows, np.array(labels)))
    with pytest.raises(AssertionError):
        check(work, 10, (rows.astype(np.float32), np.array([4, 0, 9])))


# ---- runs


@pytest.mark.slow
def test_a_work_runs_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOBFEED_BENCH_DATA", str(tmp_path))
    monkeypatch.setattr(harness, "peers_python", lambda: sys.executable)
    work = replace(find_work("hdf5_28"), data=replace(HDF5_28, quick_samples=640))
    names = ["blobfeed, 2 loaders", "plain loop", "mp.Queue, assembler", "limit: read and convert", "grain"]
    chosen = [entrant for entrant in entrants.ENTRANTS if entrant.name in names]
    chosen[-2] = replace(chosen[-2], packages=("no_such_package",))
    lines: list[str] = []

    results = run_all([work], chosen, replace(QUICK, seconds=0.1), lines.append)

    for name in ("blobfeed, 2 loaders", "plain loop", "mp.Queue, assembler", "limit: read and convert"):
        result = results["hdf5_28", name]
        assert result.rounds, (name, result.reason)
        (figures,) = result.rounds
        assert figures.samples_per_s > 0
        assert figures.first_batch_s > 0
        assert figures.own_bytes > 10_000_000
        assert figures.trainer_cpu_s <= figures.all_cpu_s + 0.02  # two clocks: /proc counts in ticks
    assert results["hdf5_28", "blobfeed, 2 loaders"].rounds[0].processes >= 4
    assert results["hdf5_28", "plain loop"].rounds[0].processes == 1
    assert results["hdf5_28", "grain"].rounds == ()
    assert "plain loop" in report.details(work, results)
    assert lines


def test_a_run_that_fails_says_its_last_words() -> None:
    with pytest.raises(RunFailed, match="unexpected keyword argument"):
        run_program(Program("benchmarks.run_one"), {"no": "job"}, limit_s=30.0)


def test_a_run_that_does_not_end_is_ended(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((100, 4), np.uint8))
    without_end = {"run": "rate", "source": {"npy": {"data": str(tmp_path / "rows.npy")}}, "seconds": 600.0}
    with pytest.raises(RunFailed, match="not done after"):
        run_program(Program("benchmarks.files_run"), without_end, limit_s=1.0)


def test_a_cold_read_is_measured_with_what_it_took_from_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((5000, 784), np.uint8))
    found = files_run.cold_rows({"npy": {"data": str(path)}}, str(path))
    assert found["wanted_bytes"] == 64 * 784
    assert 0 <= found["disk_bytes"] < 5000 * 784  # nothing, where files live in memory
    assert found["seconds"] > 0


# ---- the delivery from a ring that stands still


def test_each_way_of_delivery_is_measured() -> None:
    torch = pytest.importorskip("torch")
    from blobfeed.layers.torch_blob import Blob

    rows = host_rows(Shape(2, (3, 4, 4)), 0.0, {"NumPy": standin.Blob, "torch CPU": lambda: Blob(torch.device("cpu"))})
    assert len({row[0] for row in rows}) == 13


# ---- DLIO


def test_dlio_counts_the_files_of_each_workload_in_whole_batches() -> None:
    assert all(not each.files % (each.samples * each.batch) for each in WORKLOADS)


_A_DLIO = """#!/bin/sh
for each; do
    case $each in hydra.run.dir=*) out=${each#*=};; *format=png) wrong=1;; *data_folder=*) data=${each#*=};; esac
done
mkdir -p "$out" "$data/train"
echo '{"metric": {"train_au_percentage": [50, 70, 62]}}' > "$out/summary.json"
for number in 1 2 3; do echo "Ending epoch $number"; done
test -z "$wrong" || test "$out" = "${out%%blobfeed}" || { echo "it broke"; exit 1; }
"""


def test_the_table_of_dlio_has_the_median_epoch_and_what_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.write_text(_A_DLIO)
    python.chmod(0o755)
    asked = ["--python", str(python), "--folder", str(tmp_path / "data"), "--epochs", "3", "--no-ranks"]
    dlio.main([*asked, "--workloads", "png", "unet3d"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert rows[0] == f"| workload | step | {' | '.join(LOADERS)} |"
    assert rows[2].count("0.62 (0.50–0.70)") == 4
    assert rows[2].split(" | ")[4] == "–", "DALI takes pictures alone"
    assert rows[4].endswith("failed: it broke |")
