"""What the children log goes through the trainer's own loggers: its levels, handlers and formats apply."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import AnyArray, Hooks
from blobfeed.workers.pipeline import Pipeline, process_feed

from blobfeed import Sample, SampleError
from tests.support.pipelines import Harm, Numbered, deliver_all, parameters, trapped_pipeline
from tests.support.waiting import wait_until

SAID = "sample 7 is decoded"


def tells(sample: Sample, _: np.random.Generator) -> dict[str, AnyArray]:
    if sample.index == 7:
        logging.getLogger("mine.decode").info(SAID)
    return {"data": sample["data"], "label": sample["label"]}


def telling_pipeline() -> Pipeline:
    return open_pipeline(parameters(epochs=1), Hooks(decode=tells), source=Numbered())


def records(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == name]


def test_what_a_hook_logs_in_a_loader_is_logged_in_the_trainer_and_not_on_standard_error(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    deliver_all(telling_pipeline())
    in_loaders = [record for record in records(caplog, "mine.decode") if record.process != os.getpid()]
    assert [record.getMessage() for record in in_loaders] == [SAID]
    assert SAID not in capfd.readouterr().err  # the trainer has handlers of its own


def test_the_trainers_levels_decide_what_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.WARNING, "mine")
    deliver_all(telling_pipeline())
    assert records(caplog, "mine.decode") == []


def test_what_is_logged_arrives_at_once_while_the_trainer_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = tmp_path / "heard"

    def tells_and_waits(sample: Sample, _: np.random.Generator) -> dict[str, AnyArray]:
        if sample.index == 7:
            logging.getLogger("mine.decode").warning(SAID)
            wait_until(heard.exists, "the trainer has logged it")
        return {"data": sample["data"], "label": sample["label"]}

    class Hearing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.touch()

    monkeypatch.setattr(process_feed, "_LOGS_S", 1000.0)
    handler = Hearing()
    logging.getLogger("mine.decode").addHandler(handler)
    try:
        deliver_all(open_pipeline(parameters(epochs=1), Hooks(decode=tells_and_waits), source=Numbered()))
    finally:
        logging.getLogger("mine.decode").removeHandler(handler)


def test_a_hook_that_replaces_the_logs_handlers_does_not_close_the_way_of_its_exceptions() -> None:
    def raises(sample: Sample, _: np.random.Generator) -> dict[str, AnyArray]:
        if sample.index == 7:
            logging.basicConfig(force=True)
            raise Harm(7)
        return {"data": sample["data"], "label": sample["label"]}

    with pytest.raises(SampleError) as caught:
        deliver_all(open_pipeline(parameters(epochs=1), Hooks(decode=raises), source=Numbered()))
    assert isinstance(caught.value.__cause__, Harm)


def test_what_is_logged_arrives_although_the_trainer_never_waits(caplog: pytest.LogCaptureFixture) -> None:
    with trapped_pipeline(epochs=None) as pipeline:
        pipeline.release(pipeline.take())
        (victim, *_) = [state.pid for state in pipeline.activities() if state.pid]
        os.kill(victim, signal.SIGKILL)

        def told() -> bool:
            pipeline.release(pipeline.take())
            return any("a loader died" in record.getMessage() for record in caplog.records)

        wait_until(told, "the record of a loader's death")
