"""What a recipe refers to is known before the loaders are forked, so that they share it."""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from importlib import import_module, reload
from pathlib import Path
from random import randint
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest
from blobfeed.readers.opening import open_pipeline
from blobfeed.workers.api import AnyArray, Hooks, Parameters
from blobfeed.workers.transport import Packed, pack

from blobfeed import LoaderDied, Sample
from tests.support.pipelines import Numbered
from tests.support.trainers import trainer
from tests.support.waiting import wait_until

_NOTE = """
import os
from pathlib import Path
with Path({path!r}).open("a") as file:
    print(os.getpid(), file=file)

def decode(sample, rng):
    return {{"data": sample["data"], "label": sample["label"]}}
"""


def of_this_module(sample: Sample, rng: np.random.Generator) -> tuple[AnyArray, ...]:
    return sample["data"], sample["label"]


def test_classes_functions_and_modules_are_named() -> None:
    def by_value(_: object) -> str:
        return json.dumps("x")

    by_value.__module__ = "__main__"
    packed, _, modules = pack((Numbered(), functools.partial(of_this_module), by_value))
    assert {"tests.support.pipelines", __name__, "json"} <= set(modules)
    assert "__main__" not in modules
    source, bound, function = cloudpickle.loads(packed)
    assert (len(source), bound.func, function(None)) == (len(Numbered()), of_this_module, '"x"')


def test_what_was_made_within_a_function_needs_no_module() -> None:
    def inner(sample: Sample, rng: np.random.Generator) -> str:
        return json.dumps(len(sample))

    packed, _, modules = pack(inner)
    assert "json" in modules
    assert __name__ not in modules
    assert cloudpickle.loads(packed)([], None) == "0"


class _DrawsByTorch:
    def __call__(self, sample: Sample, rng: np.random.Generator) -> object:
        from torch import nn

        return nn


def test_torch_is_named_though_only_the_body_of_a_function_or_of_a_method_imports_it() -> None:
    def imports(sample: Sample, rng: np.random.Generator) -> object:
        import torch.nn.functional

        return torch

    def does_not(sample: Sample, rng: np.random.Generator) -> object:
        return sample["torches"]

    for hook, named in ((imports, True), (_DrawsByTorch(), True), (does_not, False), (Numbered(), False)):
        assert ("torch" in pack(hook)[2]) is named


class Log:
    """It has a file open, which it leaves out when it is pickled."""

    def fileno(self) -> int:
        return 1

    def __getstate__(self) -> dict[str, Any]:
        return {}


def test_a_hook_is_sent_with_a_variable_without_a_value_and_with_what_leaves_its_file_out() -> None:
    log = Log()

    def hook(sample: Sample) -> object:
        return later if log.fileno() < 0 else sample

    Packed(hook, parts={"decode": hook}).require_sendable(to_all=True)
    later = 0


class OddModule(ModuleType):
    """As torch.classes is: no plain module, which alone cloudpickle can pickle."""


def test_a_global_with_the_name_of_a_module_beside_one_that_is_used_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "json.classes", OddModule("json.classes"))

    def number(_: object) -> str:
        return json.dumps(len(classes))

    number.__module__ = "__main__"
    monkeypatch.setitem(globals(), "classes", ["cat", "dog"])
    assert cloudpickle.loads(pack(number)[0])(None) == "2"


classes: list[str] = []


@functools.lru_cache(maxsize=7)
def doubled(number: int) -> int:
    return 2 * number


def test_what_keeps_its_results_goes_by_value_if_it_is_the_scripts_and_by_name_if_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @functools.cache
    def factorial(number: int) -> int:
        return number * factorial(number - 1) if number else 1

    class Table:
        @functools.cached_property
        def rows(self) -> list[int]:
            return [doubled(row) for row in range(3)]

        @functools.lru_cache(maxsize=5)  # noqa: B019 - as scripts have it
        def row(self, number: int) -> int:
            return self.rows[number]

    @functools.singledispatch
    def named(value: object) -> str:
        return "other"

    named.register(int)(lambda value: "int")
    mine = threading.local()
    for thing in (factorial, Table, Table.row):
        thing.__module__ = "__main__"
    factorial.__qualname__ = "factorial"
    monkeypatch.setitem(vars(sys.modules["__main__"]), "factorial", factorial)
    assert (factorial(3), named(1), Table().row(1)) == (6, "int", 2)
    sent = cloudpickle.loads(pack((factorial, Table(), named, mine, doubled))[0])
    assert (sent[0](4), sent[1].rows, sent[1].row(2), sent[2](1), sent[2]("")) == (24, [0, 2, 4], 4, "int", "other")
    assert sent[0] is not factorial
    assert "rows" in vars(sent[1])
    assert sent[1].row.cache_parameters() == {"maxsize": 5, "typed": False}
    assert type(sent[3]) is threading.local
    assert sent[4] is doubled


@pytest.mark.parametrize("mode", ["r", "r+", "c", "w+"])
def test_an_array_that_lies_in_a_file_is_mapped_there_again(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "rows"
    np.arange(200_000, dtype=np.uint16).tofile(path)
    rows = np.memmap(path, np.uint16, mode, 10, (9000, 20))
    if mode == "w+":
        rows[...] = np.arange(180_000).reshape(9000, 20)
    parts = [rows, rows[::-2, 3:].T, np.asarray(rows[5000:]), np.lib.stride_tricks.sliding_window_view(rows, 5, axis=0)]
    expected = [part.copy() for part in parts]
    data, buffers, _ = pack(parts)
    assert bool(buffers) == (mode == "c")  # the program may have changed that
    got = cloudpickle.loads(data, buffers=buffers)
    for array, values in zip(got, expected, strict=True):
        np.testing.assert_array_equal(array, values)
        assert array.dtype == np.uint16
    if mode in ("r+", "w+"):
        got[0][...] = 7  # as a loader may do, in memory of its own
        assert not (rows == 7).all()


def test_an_array_that_is_more_than_the_memory_of_its_file_keeps_its_class(tmp_path: Path) -> None:
    np.arange(50_000).tofile(tmp_path / "rows")
    rows = np.memmap(tmp_path / "rows", np.int64, "r")
    masked, records = np.ma.array(rows, mask=rows % 2 == 0), rows.view([("label", np.int64)]).view(np.recarray)
    data, buffers, _ = pack((masked, records))
    got_masked, got_records = cloudpickle.loads(data, buffers=buffers)
    assert got_masked.sum() == masked.sum()
    np.testing.assert_array_equal(got_records.label, rows)


def test_other_hosts_get_what_a_file_of_this_one_holds(tmp_path: Path) -> None:
    np.arange(50_000).tofile(tmp_path / "rows")
    rows = np.memmap(tmp_path / "rows", np.int64, "r")
    there = pickle.dumps(Packed(rows, maps=False), pickle.HIGHEST_PROTOCOL)
    (tmp_path / "rows").unlink()
    np.testing.assert_array_equal(pickle.loads(there).value, rows)


@pytest.mark.parametrize("why", ["it was removed", "it is shorter"])
def test_an_array_whose_file_is_no_longer_there_is_sent(tmp_path: Path, why: str) -> None:
    path = tmp_path / "rows"
    np.arange(50_000).tofile(path)
    rows = np.memmap(path, np.int64, "r")
    values = rows.copy()
    path.unlink()
    if why == "it is shorter":
        path.write_bytes(b"another")
    data, buffers, _ = pack(rows)
    np.testing.assert_array_equal(cloudpickle.loads(data, buffers=buffers), values)


generator = np.random.default_rng(1)


class _Augments:
    def __init__(self) -> None:
        self.state = np.random.RandomState(1)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> float:
        return self.state.rand()


def _held() -> list[tuple[Any, str]]:
    mine, hidden = random.Random(1), [np.random.default_rng(1)]
    draw = randint
    return [
        (lambda _sample, _rng: generator.random(), "'generator' (Generator)"),
        (lambda _sample, _rng: mine.random(), "'mine' (Random)"),
        (lambda _sample, _rng: draw(0, 9), "unnamed (Random)"),
        (lambda _sample, _rng: hidden[0].random(), "unnamed (Generator)"),
        (_Augments(), "'state' (RandomState)"),
        (_Augments().__call__, "'state' (RandomState)"),
        (lambda _sample, rng: rng.random() + np.random.rand() + random.random(), ""),  # noqa: NPY002
    ]


@pytest.mark.parametrize(("hook", "named"), _held())
def test_a_generator_that_a_hook_holds_is_warned_of(hook: Any, named: str, caplog: pytest.LogCaptureFixture) -> None:
    Packed(hook, parts={"decode hook 'f'": hook}).require_sendable(to_all=True)
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        f"decode hook 'f' holds a generator of random numbers, {named}"
    ][: bool(named)]
    assert "`rng`" in caplog.text or not named


def test_files_in_memory_and_the_standard_streams_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", sys.__stderr__)
    memory, stream = io.StringIO("text"), sys.stderr
    assert cloudpickle.loads(pack(lambda: (memory.read(), stream))[0])() == ("text", sys.stderr)


SPAWNED = """
from functools import cache
from multiprocessing import get_context

def decode(sample, rng):
    return sample["data"] + ZERO + table()

ZERO = np.uint8(0)

@cache
def table():
    return np.uint8(0)

def train():
    with pipeline(decode) as feed:
        steps(feed, 12)

if __name__ == "__main__":
    child = get_context("spawn").Process(target=train)
    child.start()
    child.join()
    say(child.exitcode)
"""


def test_hooks_a_cached_function_and_a_source_of_the_script_reach_the_loaders_of_a_spawned_trainer(
    tmp_path: Path,
) -> None:
    with trainer(tmp_path, SPAWNED) as run:
        assert run.next_line() == "0", run.stderr
        assert run.end() == 0


_DIGEST = """
from sys import argv
from blobfeed.workers.transport import content_digest
class Data:
    factor = {factor}
    def __init__(self, text): self.text = text
    def __getitem__(self, index): return self.factor * index
print(content_digest(Data(argv[1])))
"""


def test_the_content_of_a_script_s_object_is_its_values_and_code_in_any_process() -> None:
    runs = [(1, "a"), (1, "a"), (2, "a"), (1, "b")]
    commands = [[sys.executable, "-c", _DIGEST.format(factor=factor), text] for factor, text in runs]
    digests = [subprocess.run(command, capture_output=True, check=True, text=True).stdout for command in commands]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_the_module_of_a_hook_is_imported_once_for_all_loaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imports = tmp_path / "imports"
    (tmp_path / "told_when_imported.py").write_text(_NOTE.format(path=str(imports)))
    monkeypatch.syspath_prepend(str(tmp_path))
    from told_when_imported import decode  # type: ignore[import-not-found]

    try:
        given = Parameters(source={}, batch_size=4, num_loaders=3, epochs=3)
        with open_pipeline(given, Hooks(decode=decode), source=Numbered()) as pipeline:
            for _ in range(pipeline.total_batches or 0):
                pipeline.release(pipeline.take())
    finally:
        del sys.modules["told_when_imported"]
    assert len(imports.read_text().split()) == 2, "here, and in the nursery"


def test_a_hooks_module_that_is_edited_while_the_trainer_runs_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "edited_meanwhile.py"
    file.write_text("def decode(sample, rng):\n    return sample\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = import_module("edited_meanwhile")

    def edited() -> None:
        with file.open("a") as code:
            code.write("# another line\n")
        os.utime(file, (time.time() + 100, time.time() + 100))

    def warnings() -> int:
        pickle.dumps(Packed(module.decode))
        return caplog.messages.count(f"{file} was edited during the run: loaders that start now run its new code")

    try:
        assert warnings() == 0
        os.utime(file, (1, 1))
        assert warnings() == 0, "git and rsync change the time, too"
        edited()
        with monkeypatch.context() as patch:
            patch.setattr(cloudpickle.cloudpickle, "_PICKLE_BY_VALUE_MODULES", {"edited_meanwhile"})
            assert warnings() == 0, "it is sent as it is in memory"
        assert [warnings(), warnings()] == [1, 1]
        edited()
        reload(module)
        assert warnings() == 1, "what was loaded anew is the same here and in the loaders"
    finally:
        del sys.modules["edited_meanwhile"]


def test_a_module_that_only_the_trainer_has_is_an_error_that_says_how_to_send_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "made_from_a_path", module := ModuleType("made_from_a_path"))
    exec("def decode(sample, rng):\n    return sample['data']", vars(module))
    given = Parameters(source={}, batch_size=4, num_loaders=1, tops=("data",))
    with (
        open_pipeline(given, Hooks(decode=module.decode), source=Numbered()) as pipeline,
        pytest.raises(LoaderDied, match=r"register_pickle_by_value\(sys.modules\['made_from_a_path'\]\)$"),
    ):
        pipeline.take()
    cloudpickle.register_pickle_by_value(module)
    try:
        with open_pipeline(given, Hooks(decode=module.decode), source=Numbered()) as pipeline:
            assert pipeline.take().rows == 4
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def test_a_large_array_that_a_hook_holds_lies_in_memory_once_and_may_be_written_to() -> None:
    table = np.arange(1 << 24, dtype=np.int32)

    def decode(sample: Sample, rng: np.random.Generator) -> dict[str, AnyArray]:
        table[0] += 1  # in this process alone
        return {"data": table[sample.index : sample.index + 1] * 2, "first": table[:1].copy()}

    given = Parameters(source={}, batch_size=4, num_loaders=3, epochs=1)
    with open_pipeline(given, Hooks(decode=decode), source=Numbered()) as pipeline:
        batch = pipeline.take()
        data, first = batch.tops["data"], batch.tops["first"]
        assert isinstance(data, np.ndarray)
        assert isinstance(first, np.ndarray)
        assert data[1:, 0].tolist() == (2 * batch.indices[1:]).tolist()
        assert (first > 0).all()

        def loaders() -> list[int]:
            return [state.pid for state in pipeline.activities() if state.pid]

        wait_until(lambda: len(loaders()) == 3, "all loaders: the first batch may come before the last of them starts")
        ours = loaders()
        assert all(private_bytes(pid) < table.nbytes // 2 for pid in ours)
        pipeline.release(batch)
