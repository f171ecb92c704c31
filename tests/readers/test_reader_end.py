"""A reader ends by close, by an error, by being forgotten, or with the program, and in one process alone."""

from __future__ import annotations

import copy
import gc
import pickle
import signal
import subprocess
import sys
import weakref
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from blobfeed.readers.delivery import HostDelivery
from blobfeed.workers.transport import links

from blobfeed import BatchReader, PipelineClosed, Sample, SampleError, StreamSource, Table
from tests.support import leftovers
from tests.support.forked import exit_code, fork
from tests.support.pipelines import the_assembler
from tests.support.reader_data import records, write_hdf5
from tests.support.waiting import DEADLINE_S, wait_until_none

from .reading import SAMPLES, all_labels, read


@pytest.mark.parametrize("num_loaders", [0, 1])
def test_a_reader_is_not_copied_and_goes_on(source: dict[str, Any], num_loaders: int) -> None:
    copies: tuple[Any, ...] = (copy.copy, copy.deepcopy, pickle.dumps)
    with read(source, num_loaders=num_loaders, epochs=1, last_batch="partial") as reader:
        loop = iter(reader)
        found = [next(loop)]
        for copied in copies:
            with pytest.raises(TypeError):
                copied(reader)
            gc.collect()
        found += loop
    assert all_labels(found) == list(range(SAMPLES))


@pytest.mark.parametrize("num_loaders", [0, 1])
@pytest.mark.parametrize("looked_at", [0, 1])
def test_a_fork_of_the_trainer_cannot_read_the_same_batches(
    source: dict[str, Any], num_loaders: int, looked_at: int
) -> None:
    with read(source, num_loaders=num_loaders, epochs=1) as reader:
        for _ in range(looked_at):
            next(iter(reader))

        def is_refused() -> None:
            with pytest.raises(PipelineClosed):
                next(iter(reader))

        assert exit_code(fork(is_refused)) == 0


def test_what_the_block_raises_goes_on_though_closing_fails_too(
    source: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device after a kernel that has failed: from then on CUDA refuses every call."""

    def fail(delivery: HostDelivery) -> None:
        raise OSError("the device has gone")

    reader = read(source, epochs=1)
    monkeypatch.setattr(HostDelivery, "close", fail)
    with pytest.raises(ZeroDivisionError) as caught, reader:
        raise ZeroDivisionError
    assert caught.value.__notes__ == ["closing the BatchReader raised OSError: the device has gone"]


def fail_at_five(sample: Sample, rng: np.random.Generator) -> Sample:
    if sample["label"] == 5:
        raise ValueError("the fifth")
    return sample


@pytest.mark.parametrize("num_loaders", [0, 1])
@pytest.mark.parametrize("ends", ["in the middle", "by an error", "as streams do"])
def test_a_reader_that_is_forgotten_gives_everything_back(source: dict[str, Any], ends: str, num_loaders: int) -> None:
    def read_to_the_end() -> weakref.ref[BatchReader]:
        what, decode = (StreamSource(records), None) if ends == "as streams do" else (source, fail_at_five)
        reader = read(what, decode=decode, epochs=1, num_loaders=num_loaders)
        with suppress(SampleError):
            list(islice(reader, 1 if ends == "in the middle" else None))
        assert not num_loaders or ends != "in the middle" or leftovers.orphans()
        return weakref.ref(reader)

    reader = read_to_the_end()
    gc.collect()
    assert reader() is None
    assert not wait_until_none(lambda: [leftovers.describe(pid) for pid in leftovers.orphans()], DEADLINE_S)


INTERRUPTED_AT_THE_END = """
import os, signal, sys
from blobfeed import BatchReader
from blobfeed.readers.delivery import HostDelivery

reader = BatchReader(sys.argv[1], batch_size=4, num_loaders=1)
next(iter(reader))
close = HostDelivery.close
def interrupted(delivery):
    os.kill(os.getpid(), signal.SIGINT)
    close(delivery)
HostDelivery.close = interrupted
os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_second_interrupt_while_the_program_ends_says_nothing_more(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "train.h5", SAMPLES)
    command = [sys.executable, "-c", INTERRUPTED_AT_THE_END, str(tmp_path / "train.h5")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.endswith("\nKeyboardInterrupt\n")
    assert done.stderr.count("Traceback") == 1


def test_closing_gives_everything_back_though_each_step_of_it_fails(
    source: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(what: str) -> Any:
        def step(*_: object) -> None:
            raise RuntimeError(f"the {what}")

        return step

    before = leftovers.descriptors()
    reader = read(source, num_loaders=1)
    next(iter(reader))
    processes = the_assembler().children(recursive=True)
    assert processes
    with monkeypatch.context() as patched:
        patched.setattr(HostDelivery, "close", fails("delivery"))
        patched.setattr(links, "frame_of", fails("link"))
        patched.setattr(Table, "close", fails("source"))
        with pytest.raises(RuntimeError, match="the delivery"):
            reader.close()
    psutil.wait_procs(processes, timeout=DEADLINE_S)
    assert not any(process.is_running() for process in processes)
    assert leftovers.opened_since(before) == []
    reader.close()
