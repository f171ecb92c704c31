"""Metrics of a running pipeline, read by Prometheus' own parser."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from blobfeed.readers.opening import open_pipeline
from blobfeed.watching import MetricsFile, with_files
from blobfeed.workers.api import RemoteLoaders
from blobfeed.workers.transport import Activity
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support.pipelines import Numbered, deliver, parameters
from tests.support.waiting import wait_until


def values_of(text: str) -> dict[str, float]:
    """By name, with the label that tells samples of one name apart."""
    told = {}
    for family in text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
        for sample in family.samples:
            assert sample.labels["source"] == "numbered"
            assert sample.labels["trainer"] == str(os.getpid())
            which = sample.labels.get("activity") or sample.labels.get("state") or ""
            told[f"{sample.name}{which}"] = sample.value
    return told


def check(values: dict[str, float]) -> None:
    assert values["blobfeed_batches_total"] == 20
    assert values["blobfeed_samples_total"] == 80
    assert values["blobfeed_diagnosis_info"] == 1
    assert values["blobfeed_loader_seconds_totalreading"] > 0
    present = [each for each in Activity if each is not Activity.ABSENT]
    assert all(f"blobfeed_loader_seconds_total{each.name.lower()}" in values for each in present)
    assert values["blobfeed_slotsempty"] >= 0
    assert values["blobfeed_stalls_total"] >= 1


def test_a_file_has_the_counts_while_the_pipeline_runs_and_after_it(tmp_path: Path) -> None:
    path = tmp_path / "blobfeed.prom"
    with open_pipeline(parameters(metrics="blobfeed.prom"), source=Numbered(), base_dir=tmp_path) as pipeline:
        list(deliver(pipeline))
        wait_until(path.exists, "the file is there")
        # The last release reaches the assembler a moment later.
        wait_until(lambda: values_of(path.read_text())["blobfeed_batches_total"] == 20, "all batches are counted")
    check(values_of(path.read_text()))
    kinds = {line.split()[3] for line in path.read_text().splitlines() if line.startswith("# TYPE")}
    assert kinds <= {"counter", "gauge"}, "node_exporter refuses a file with a type of OpenMetrics alone"
    assert [each.name for each in tmp_path.iterdir()] == ["blobfeed.prom"]


def test_a_file_that_cannot_be_written_any_more_is_told_and_the_batches_come(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    with open_pipeline(
        parameters(metrics="metrics/a.prom", epochs=None), source=Numbered(), base_dir=tmp_path
    ) as pipeline:
        shutil.rmtree(folder)

        def is_told() -> bool:
            pipeline.release(pipeline.take())
            return any("metrics cannot be written to" in record.getMessage() for record in caplog.records)

        wait_until(is_told, "that they cannot be written")
        pipeline.release(pipeline.take())


def test_a_file_that_cannot_be_written_is_told_once_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "metrics"
    file = MetricsFile(folder / "a.prom")
    for told in (1, 2):
        file.write("1")
        file.write("2")
        assert len(caplog.records) == told
        folder.mkdir()
        file.write("3")
        assert (folder / "a.prom").read_text() == "3"
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["metrics", "trace"])
def test_without_loaders_nobody_writes_them_unless_there_are_remote_ones(tmp_path: Path, name: str) -> None:
    given = parameters(num_loaders=0, remote_loaders=RemoteLoaders(), **{name: "told"})
    assert getattr(with_files(given, tmp_path), name) == str(tmp_path / "told")


def test_a_file_that_another_pipeline_writes_too_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, other = MetricsFile(tmp_path / "a.prom"), MetricsFile(tmp_path / "a.prom")
    one.write("1")
    one.write("2")
    assert not caplog.records
    for text in "34":
        other.write(text)
        one.write(text)
    assert [record.getMessage() for record in caplog.records] == 2 * [
        f"another pipeline writes its metrics into {tmp_path / 'a.prom'}, too: name a file for each"
    ]
