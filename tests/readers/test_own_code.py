"""A user's own code in the pipeline: what decode and postprocess make is what comes out, or an error says why not."""

from __future__ import annotations

import os
import random
import resource
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.layers.harness import LayerHarness
from blobfeed.layers.multi_process_input_layer import MultiProcessInputLayer
from blobfeed.readers.batch_reader import BatchReader
from blobfeed.workers.base.errors import ParameterError, SampleError, SampleShapeError
from blobfeed.workers.base.hooks import HookBatch, Sample
from blobfeed.workers.base.source import Source
from blobfeed.workers.base.specs import ArraySpec, IndexArray, NamedRows
from blobfeed.workers.sources.stream import StreamSource

from tests.support.waiting import wait_until

SAMPLES = 48


class Pictures(Source):
    """Sample i is `data`, shape (3,) uint8, i, i+1, i+2, and `label`, i."""

    kind = "pictures"

    def __len__(self) -> int:
        return SAMPLES

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return {"data": ArraySpec((3,), np.dtype(np.uint8)), "label": ArraySpec((), np.dtype(np.int64))}

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        out["data"][...] = indices[:, None] + np.arange(3)  # type: ignore[index]
        out["label"][...] = indices  # type: ignore[index]


def delivered(num_loaders: int = 0, **parameters: Any) -> dict[str, Any]:
    """All batches of one epoch, end to end; without loaders, since the worker that runs the hooks is theirs as well."""
    settings = {"batch_size": 8, "epochs": 1, "seed": 3, "shuffle": True, **parameters}
    with BatchReader(Pictures(), num_loaders=num_loaders, **settings) as reader:
        batches = [dict(batch) for batch in reader]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def pixels(labels: Any) -> Any:
    return (labels[:, None] + np.arange(3)).astype(np.uint8)


def test_a_source_whose_specs_are_something_else_is_told_what_they_are() -> None:
    class Tuples(Pictures):
        @property
        def specs(self) -> Any:
            return {"data": ((3,), "uint8")}

    with pytest.raises(
        ParameterError, match=r"'pictures' \(Tuples\): its specs say of 'data' \(\(3,\), 'uint8'\): .*ArraySpec\("
    ):
        BatchReader(Tuples(), batch_size=4)

    class Method(Pictures):
        def specs(self) -> Any:  # type: ignore[override]
            return super().specs

    with pytest.raises(ParameterError, match=r"\(Method\): its specs are <bound method .*: expected .*@property"):
        BatchReader(Method(), batch_size=4)


def test_a_source_whose_specs_have_another_byte_order_is_refused() -> None:
    class Swapped(Pictures):
        @property
        def specs(self) -> Mapping[str, ArraySpec]:
            return {"data": ArraySpec((3,), np.dtype(">i4"))}

    with pytest.raises(ParameterError, match=r"its specs say of 'data' .*>i4.* in this machine's byte order"):
        BatchReader(Swapped(), batch_size=4)


@pytest.mark.parametrize("decode", [None, dict])
def test_a_source_that_does_not_write_into_its_batch_is_told_so_in_setup(decode: Any) -> None:
    class Returning(Pictures):
        def read(self, indices: IndexArray, out: NamedRows) -> Any:
            return {"data": np.zeros((len(indices), 3), np.uint8), "label": indices}

    class Replacing(Pictures):
        def read(self, indices: IndexArray, out: Any) -> None:
            out["data"], out["label"] = np.zeros((len(indices), 3), np.uint8), indices

    class Telling(Pictures):
        def read(self, indices: IndexArray, out: NamedRows) -> Any:
            super().read(indices, out)
            return out["label"]  # as np.take(…, out=out["label"]) does

    hook = decode and (lambda sample, rng: dict(sample))
    with BatchReader(Telling(), decode=hook, batch_size=4, num_loaders=0) as reader:
        assert next(iter(reader))["label"].tolist() == [0, 1, 2, 3]
    for source, told in ((Returning(), "Returning.read returned a dict"), (Replacing(), "Replacing.read replaced an")):
        with pytest.raises(TypeError, match=rf"{told}.*, which reaches no batch: expected it to write into"):
            BatchReader(source, decode=hook, batch_size=4)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "its specs are empty: expected the name"),
        ({"data": ArraySpec([3], np.dtype("u1"))}, r"its specs say of 'data' .*\[3\].*: a tuple of whole numbers"),  # type: ignore[arg-type]
        ({"data": ArraySpec((-1,), np.dtype("u1"))}, r"its specs say of 'data' .*\(-1,\).*: a tuple of whole numbers"),
        ({"data": ArraySpec((3.0,), np.dtype("u1"))}, r"its specs say of 'data' .*\(3.0,\)"),  # type: ignore[arg-type]
        ({"data": ArraySpec((3,), np.dtype(object))}, r"its specs say of 'data' .*'O'.* holds no objects"),
    ],
)
def test_specs_that_describe_no_array_are_refused(given: Mapping[str, ArraySpec], told: str) -> None:
    class Odd(Pictures):
        @property
        def specs(self) -> Mapping[str, ArraySpec]:
            return given

    with pytest.raises(ParameterError, match=told):
        BatchReader(Odd(), batch_size=4)


@pytest.mark.parametrize("device", ["", "cpu"])
def test_what_hooks_make_in_another_byte_order_comes_in_this_machines(device: str) -> None:
    def decode(sample: Sample, _: np.random.Generator) -> Any:
        order = "><"[int(sample["label"]) % 2]
        return {"wide": np.append(sample["data"], sample["label"]).astype(f"{order}i4")}

    def postprocess(batch: HookBatch) -> dict[str, Any]:
        return {"sums": batch["wide"].sum(axis=1).astype(">f8")}

    got = delivered(2, decode=decode, postprocess=postprocess, device=device)
    assert {name: values.dtype.str for name, values in got.items()} == {"wide": "<i4", "sums": "<f8"}
    np.testing.assert_array_equal(got["wide"][:, :3].astype(np.uint8), pixels(got["wide"][:, 3]))
    np.testing.assert_array_equal(got["sums"], got["wide"].sum(axis=1))


# ---- what a hook makes at its first call


class _Opens:
    lock: Any = None

    def __call__(self, sample: Sample, _: np.random.Generator) -> Any:
        self.lock = self.lock or threading.Lock()
        return dict(sample)

    def batch(self, batch: HookBatch) -> None:
        self.lock = self.lock or threading.Lock()


def _in_a_closure() -> Callable[..., Any]:
    lock: Any = None

    def decode(sample: Sample, _: np.random.Generator) -> Any:
        nonlocal lock
        lock = lock or threading.Lock()
        return dict(sample)

    return decode


_made: Any = None


def _in_a_global(sample: Sample, _: np.random.Generator) -> Any:
    global _made  # noqa: PLW0603 - what users do
    _made = _made or threading.Lock()
    return dict(sample)


class _Keeps:
    def __init__(self) -> None:
        self.made: dict[str, dict[str, Any]] = {"locks": {}}
        self.order: deque[str] = deque()

    def __call__(self, sample: Sample, _: np.random.Generator) -> Any:
        if "one" not in self.made["locks"]:
            assert not self.order, "one of the two was undone and not the other"
            self.order.append("one")
        self.made["locks"].setdefault("one", threading.Lock())
        return dict(sample)

    @cached_property
    def lock(self) -> Any:
        return threading.Lock()


_kept: dict[str, Any] = {}
_keeps = _Keeps()


def _lock() -> Any:
    global _made  # noqa: PLW0603 - what users do
    _made = _made or threading.Lock()
    return _made


def _in_what_globals_hold(sample: Sample, _: np.random.Generator) -> Any:
    with _kept.setdefault("lock", threading.Lock()), _keeps.lock, _lock():
        return dict(sample)


@pytest.mark.parametrize(
    "given",
    [
        {"decode": _Keeps()},
        {"decode": _in_what_globals_hold},
        {"decode": _Opens()},
        {"decode": partial(_Opens())},
        {"postprocess": _Opens().batch},
        {"decode": _in_a_closure()},
        {"decode": _in_a_global},
    ],
)
def test_what_a_hook_makes_at_its_first_call_need_not_be_sent(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for thing in (_in_a_global, _in_what_globals_hold, _lock, _Keeps):
        monkeypatch.setattr(thing, "__module__", "__main__")  # sent with the globals that it uses
    with BatchReader(Pictures(), batch_size=8, epochs=1, num_loaders=1, **given) as reader:
        state = reader.state_dict()
        for _ in range(2):
            assert sorted(label for batch in reader for label in batch["label"]) == list(range(SAMPLES))
            reader.load_state_dict(state)  # setup tries the hook again


class _OpensAtFirstRead(Pictures):
    """As sources that read a database do: an open connection cannot be sent."""

    def __init__(self) -> None:
        self.opened: Any = None
        self.pages: dict[int, Any] = {}

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        self.opened = self.opened or threading.Lock()
        with self.opened, self.pages.setdefault(0, threading.Lock()):
            super().read(indices, out)

    def walk(self, shard: int, shards: int) -> Iterator[Any]:
        self.opened = self.opened or threading.Lock()
        yield from ({"label": number} for number in range(shard, SAMPLES, shards))


class _Scans(Pictures):
    """Its index is made at first need, and takes long: what can be sent is not made again by each loader."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self.found: list[int] = []

    def read(self, indices: IndexArray, out: NamedRows) -> None:
        if not self.found:
            with self.notes.open("a") as file:
                print("scanned", file=file)
            self.found = list(range(SAMPLES))
        super().read(indices, out)


class _OpensInItsConstructor(_OpensAtFirstRead):
    """It closes itself, so what it has assigned stays: to undo it would bring back what is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Lock()

    def close(self) -> None:
        self.opened = None
        self.pages.clear()


@pytest.mark.parametrize(
    "make",
    [
        _OpensAtFirstRead,
        _OpensInItsConstructor,
        lambda: {"concat": [_OpensAtFirstRead()]},
        lambda: StreamSource(_OpensAtFirstRead().walk, shards=2),
    ],
)
def test_what_a_source_opens_at_its_first_read_need_not_be_sent(make: Callable[[], Any]) -> None:
    with BatchReader(make(), batch_size=8, epochs=1, num_loaders=1) as reader:
        assert sorted(label for batch in reader for label in batch["label"]) == list(range(SAMPLES))


def test_what_a_source_makes_at_its_first_read_is_sent_if_it_can_be(tmp_path: Path) -> None:
    with BatchReader(_Scans(tmp_path / "notes"), batch_size=8, epochs=1, num_loaders=2) as reader:
        assert sorted(label for batch in reader for label in batch["label"]) == list(range(SAMPLES))
    assert (tmp_path / "notes").read_text() == "scanned\n"


@pytest.mark.parametrize("sampler", [None, range(SAMPLES)])
@pytest.mark.parametrize("key", ["source", "concat", "mix"])
def test_a_source_of_the_script_may_stand_in_a_mapping(key: str, sampler: Any) -> None:
    class Local(Pictures):
        """The process that plans the batches can import it no more than a class of a script."""

    part = {"concat": [Local()]}
    given: dict[str, Any] = {"mix": [part, part]} if key == "mix" else {"source": part if key == "concat" else Local()}
    given |= {"batch_size": 8, "num_loaders": 1} | ({"sampler": sampler} if sampler and key != "mix" else {})
    with LayerHarness(MultiProcessInputLayer, given) as harness:
        assert harness.forward()["label"].tolist() == ([0, 0, 1, 1, 2, 2, 3, 3] if key == "mix" else list(range(8)))


class _LocksOnce(MultiProcessInputLayer):
    def decode(self, sample: Sample, rng: np.random.Generator) -> Any:
        with _kept.setdefault("lock", threading.Lock()):
            return dict(sample)


def test_what_the_decode_of_a_layer_makes_at_its_first_call_need_not_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for thing in (_LocksOnce, _LocksOnce.decode):
        monkeypatch.setattr(thing, "__module__", "__main__")
    np.save(tmp_path / "x.npy", np.arange(6))
    given = {"source": {"npy": {"x": str(tmp_path / "x.npy")}}, "batch_size": 6, "num_loaders": 1}
    with LayerHarness(_LocksOnce, given, tops=["x"]) as harness:
        assert harness.forward()["x"].tolist() == list(range(6))


@pytest.mark.parametrize("num_loaders", [0, 1])
def test_what_a_hook_stores_while_setup_tries_it_is_forgotten(num_loaders: int) -> None:
    in_closure = 0

    class Counting:
        of_all = 0

        def __init__(self) -> None:
            self.own = {"calls": 0}

        def __call__(self, sample: Sample, _: np.random.Generator) -> Any:
            nonlocal in_closure
            in_closure += 1
            self.own["calls"] += 1
            type(self).of_all += 1
            return {"calls": np.array([self.own["calls"], in_closure, self.of_all])}

    with BatchReader(Pictures(), decode=Counting(), batch_size=8, epochs=1, num_loaders=num_loaders) as reader:
        assert in_closure == Counting.of_all == 0, "the trial has changed the user's own"
        calls = np.concatenate([batch["calls"] for batch in reader])
    assert calls.T.tolist() == [list(range(1, SAMPLES + 1))] * 3


@pytest.mark.parametrize("num_loaders", [0, 1])
def test_an_exception_of_the_script_is_caught_by_its_class_in_setup(num_loaders: int) -> None:
    class Unfit(ValueError):
        pass

    def decode(sample: Sample, _: np.random.Generator) -> Any:
        raise Unfit("no picture fits")

    with pytest.raises(Unfit, match="no picture fits"):
        BatchReader(Pictures(), decode=decode, batch_size=8, num_loaders=num_loaders)


@pytest.mark.parametrize("hook", ["decode", "postprocess"])
def test_without_loaders_a_hook_may_hold_what_cannot_be_copied(hook: str) -> None:
    lock = threading.Lock()

    def locks(given: Any, *_: Any) -> Any:
        with lock:
            return dict(given)

    assert len(delivered(0, **{hook: locks})["label"]) == SAMPLES


@pytest.mark.parametrize("as_stream", [False, True])
def test_a_postprocess_hook_may_be_written_for_whole_batches(as_stream: bool) -> None:
    def centres(batch: HookBatch) -> dict[str, Any]:
        return {"centre": batch["label"].reshape(2, 4).mean(axis=1).repeat(4)}

    source: Any = StreamSource(lambda: ({"label": label} for label in range(SAMPLES))) if as_stream else Pictures()
    with BatchReader(source, postprocess=centres, batch_size=8, epochs=1, num_loaders=0) as reader:
        assert next(iter(reader))["centre"].tolist() == [1.5] * 4 + [5.5] * 4
    with pytest.raises(ValueError, match="cannot reshape array of size 7 into"):
        BatchReader(source, postprocess=centres, batch_size=7)


# ---- tops are what comes out


def test_decode_makes_tops_that_the_source_does_not_have_and_leaves_others_out() -> None:
    def decode(sample: Sample, _: np.random.Generator) -> dict[str, Any]:
        data = sample["data"]
        return {"im_info": np.array([3.0, 1.0], np.float32), "wide": np.repeat(data, 2), "of": sample["label"]}

    got = delivered(decode=decode)
    assert sorted(got) == ["im_info", "of", "wide"]
    assert got["im_info"].shape == (SAMPLES, 2)
    np.testing.assert_array_equal(got["wide"], np.repeat(pixels(got["of"]), 2, axis=1))
    assert sorted(got["of"].tolist()) == list(range(SAMPLES))


@pytest.mark.parametrize("num_loaders", [0, 1])
def test_decode_may_change_its_sample_and_return_it(num_loaders: int) -> None:
    def decode(sample: Sample, rng: np.random.Generator) -> Sample:
        sample["data"] = sample["data"] / np.float32(2)
        sample["twice"] = 2 * sample.pop("label")
        return sample

    for _ in range(2):
        got = delivered(num_loaders, decode=decode)
        assert list(got) == ["data", "twice"]
        labels = got["twice"] // 2
        assert sorted(labels) == list(range(SAMPLES))
        np.testing.assert_array_equal(got["data"], pixels(labels) / np.float32(2))


def test_tops_names_what_a_tuple_holds() -> None:
    got = delivered(decode=lambda sample, _: (sample["label"], sample["data"], 7), tops=["a", "b", "c"])
    assert list(got) == ["a", "b", "c"]
    np.testing.assert_array_equal(got["b"], pixels(got["a"]))
    assert set(got["c"].tolist()) == {7}


def test_a_tuple_of_unknown_length_needs_names() -> None:
    with pytest.raises(ParameterError, match="decode returned 3 arrays without names, and 2 are read"):
        BatchReader(Pictures(), batch_size=8, decode=lambda sample, _: (1, 2, 3))


def test_fields_and_tops_are_two_lists(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12).reshape(6, 2))
    np.save(tmp_path / "y.npy", np.arange(6))
    source = {"npy": {"x": str(tmp_path / "x.npy"), "y": str(tmp_path / "y.npy")}}
    decode: Callable[..., Any] = lambda sample, _: {"sum": sample["x"].sum() + sample["y"]}  # noqa: E731
    with BatchReader(source, fields=["x", "y"], tops=["sum"], decode=decode, batch_size=6, epochs=1) as reader:
        (batch,) = reader
    assert batch["sum"].tolist() == [1 + 0, 5 + 1, 9 + 2, 13 + 3, 17 + 4, 21 + 5]


def test_a_relative_base_directory_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.arange(6))
    monkeypatch.chdir(tmp_path.parent)
    with BatchReader({"npy": {"x": "x.npy"}}, base_dir=tmp_path.name, batch_size=6, epochs=1, num_loaders=0) as reader:
        monkeypatch.chdir("/")
        assert next(iter(reader))["x"].tolist() == list(range(6))


@pytest.mark.parametrize("num_loaders", [0, 1])
def test_data_with_an_absolute_path_are_read_where_the_working_directory_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_loaders: int
) -> None:
    np.save(tmp_path / "x.npy", np.arange(6))
    source = {"npy": {"x": str(tmp_path / "x.npy")}}
    given: dict[str, Any] = {"source": source, "batch_size": 6, "num_loaders": num_loaders}
    monkeypatch.chdir(tmp_path)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with BatchReader(**given, epochs=1) as reader, LayerHarness(MultiProcessInputLayer, given, tops=["x"]) as harness:
        assert next(iter(reader))["x"].tolist() == harness.forward()["x"].tolist() == list(range(6))


def test_fields_choose_among_what_a_source_of_the_users_own_has() -> None:
    assert list(delivered(fields=["label"])) == ["label"]
    assert list(delivered(fields=["label", "data"], tops=["data"])) == ["data"]
    for fields in (["label"], ["label", "data"]):
        assert list(delivered(fields=fields, decode=lambda sample, _: dict(sample))) == fields
    assert list(delivered(fields=["label"], decode=lambda sample, _: sample["label"])) == ["label"]
    hooks: list[dict[str, Any]] = [{}, {"decode": lambda sample, _: sample["label"]}]
    for given in hooks:
        with pytest.raises(
            ParameterError, match=r"parameter 'fields': source 'pictures': unknown top 'lable' \(did you"
        ):
            delivered(fields=["lable"], **given)


# ---- whole batches


def test_postprocess_may_change_the_type_of_a_top() -> None:
    got = delivered(postprocess=lambda batch: {"data": ((batch["data"] - 127.5) / 127.5).astype(np.float32)})
    assert got["data"].dtype == np.float32
    np.testing.assert_array_equal(got["data"], ((pixels(got["label"]) - 127.5) / 127.5).astype(np.float32))


def test_postprocess_may_convert_some_batches_and_leave_others_alone() -> None:
    def postprocess(batch: HookBatch) -> None:
        if 30 not in batch["label"]:
            batch["data"] = batch["data"].astype(np.float32)

    got = delivered(postprocess=postprocess)
    assert got["data"].dtype == np.float32
    np.testing.assert_array_equal(got["data"], pixels(got["label"]))


def scaled(batch: HookBatch, scale: float) -> dict[str, Any]:
    return {"data": batch["data"] * scale}


@pytest.mark.parametrize(
    "hook",
    [
        partial(scaled, scale=0.5),
        lambda batch, **scale: scaled(batch, 0.5, **scale),
        lambda batch, scale=0.5: scaled(batch, scale),
    ],
)
def test_what_postprocess_takes_by_name_or_has_a_default_is_no_generator(hook: Callable[..., Any]) -> None:
    got = delivered(postprocess=hook)
    np.testing.assert_array_equal(got["data"], pixels(got["label"]) * 0.5)


@pytest.mark.parametrize(
    "hook",
    [
        lambda batch, rng=None: {"new": rng.random(len(batch["label"]))},
        lambda batch, rng=None, /: {"new": rng.random(len(batch["label"]))},
        lambda batch, *, rng=None: {"new": rng.random(len(batch["label"]))},
        lambda batch, strength=0.5, rng=None: {"new": rng.random(len(batch["label"])) * strength},
    ],
)
def test_a_generator_may_have_a_default(hook: Callable[..., Any]) -> None:
    got = delivered(postprocess=hook)
    assert len({*got["new"]}) == len(got["label"])


def test_a_generator_may_be_taken_by_name_and_spawn_others() -> None:
    def postprocess(batch: HookBatch, *, rng: np.random.Generator) -> dict[str, Any]:
        return {"new": rng.spawn(1)[0].random(len(batch["label"]))}

    one, two = (delivered(number, postprocess=postprocess)["new"] for number in (0, 2))
    assert len({*one}) == len(one)
    np.testing.assert_array_equal(one, two)


def test_postprocess_may_list_rows_of_a_top_that_it_changes() -> None:
    got = delivered(
        postprocess=lambda batch: {
            "other": [*batch["data"][::-1]],
            "data": [0 * row for row in batch["data"]],
            "of": batch["label"][::-1],
        }
    )
    np.testing.assert_array_equal(got["other"], pixels(got["of"]))


def test_postprocess_may_leave_the_range_of_the_type_that_it_got() -> None:
    got = delivered(postprocess=lambda batch: {"data": batch["data"] * 2.0 + 300})
    np.testing.assert_array_equal(got["data"], pixels(got["label"]) * 2.0 + 300)


def test_what_postprocess_assigns_to_its_batch_counts_without_a_return() -> None:
    def postprocess(batch: HookBatch) -> None:
        batch["data"] = batch["data"] / 255
        batch["mean"] = batch["data"].mean(axis=1)

    got = delivered(postprocess=postprocess)
    np.testing.assert_array_equal(got["data"], pixels(got["label"]) / 255)
    np.testing.assert_array_equal(got["mean"], got["data"].mean(axis=1))


def test_postprocess_may_change_shapes_and_drop_tops() -> None:
    def postprocess(batch: HookBatch) -> dict[str, Any]:
        return {"pairs": np.stack([batch["data"], batch["data"][::-1]], axis=1), "other": batch["label"][::-1]}

    got = delivered(postprocess=postprocess, tops=["pairs", "other", "label"])
    assert list(got) == ["pairs", "other", "label"]
    assert got["pairs"].shape == (SAMPLES, 2, 3)
    np.testing.assert_array_equal(got["pairs"][:, 0], pixels(got["label"]))
    np.testing.assert_array_equal(got["pairs"][:, 1], pixels(got["other"]))


def test_tops_that_change_places_do_not_overwrite_each_other() -> None:
    def postprocess(batch: HookBatch) -> dict[str, Any]:
        return {"low": batch["high"], "high": batch["low"]}

    def decode(sample: Sample, _: np.random.Generator) -> dict[str, Any]:
        return {"low": sample["label"], "high": sample["label"] + 100}

    got = delivered(decode=decode, postprocess=postprocess)
    np.testing.assert_array_equal(got["low"], got["high"] + 100)


@pytest.mark.parametrize("num_loaders", [0, 2])
@pytest.mark.parametrize("in_place", [True, False])
def test_postprocess_may_give_each_batch_another_shape(num_loaders: int, in_place: bool) -> None:
    images = np.random.default_rng(0).integers(0, 256, (24, 6, 6), np.uint8)

    def smaller_later(sample: Sample, _: np.random.Generator) -> Any:
        return {"data": sample["data"][: 6 - sample.index // 8]}

    def upside_down(batch: HookBatch) -> Any:
        rows = batch["data"][::-1, ::-1, : len(batch["data"][0])]
        if not in_place:
            return {"data": rows}
        batch["data"][...] = batch["data"][::-1].copy()
        return None

    hooks: dict[str, Any] = {"decode": smaller_later, "postprocess": upside_down, "max_shapes": {"data": [6, 6]}}
    with BatchReader({"arrays": {"data": images}}, batch_size=8, epochs=1, num_loaders=num_loaders, **hooks) as reader:
        for number, batch in enumerate(reader):
            rows = images[8 * number : 8 * number + 8, : 6 - number]
            expected = rows[::-1] if in_place else rows[::-1, ::-1, : 6 - number]
            np.testing.assert_array_equal(batch["data"], expected)


@pytest.mark.parametrize("num_loaders", [0, 2])
def test_postprocess_may_make_a_top_of_another_name_in_different_shapes(num_loaders: int) -> None:
    images = np.arange(24 * 36).reshape(24, 6, 6)
    given: dict[str, Any] = {"batch_size": 8, "epochs": 1, "num_loaders": num_loaders, "tops": ["small"]}
    given["postprocess"] = lambda batch: {"small": batch["data"][:, 3 + batch.indices[0] // 8 :]}
    with BatchReader({"arrays": {"data": images}}, max_shapes={"small": [3, 6]}, **given) as reader:
        for number, batch in enumerate(reader):
            np.testing.assert_array_equal(batch["small"], images[8 * number : 8 * number + 8, 3 + number :])
    with pytest.raises(ParameterError, match="'max_shapes', after postprocess: unknown top 'tiny'; the known ones are"):
        BatchReader({"arrays": {"data": images}}, max_shapes={"tiny": [3, 6]}, **given)


@pytest.mark.parametrize("given", [{}, {"max_shapes": {"data": [6, 6]}}])
@pytest.mark.parametrize("later", [1, np.zeros((8, 7, 6)), np.zeros((8, 6)), np.zeros((7, 6, 6))], ids=np.shape)
def test_a_shape_that_a_top_cannot_have_names_the_top(later: Any, given: Any) -> None:
    def hook(batch: HookBatch) -> Any:
        return {"data": batch["data"] if batch.indices[0] == 0 else later}

    with BatchReader(
        {"arrays": {"data": np.zeros((24, 6, 6))}}, batch_size=8, num_loaders=0, postprocess=hook, **given
    ) as reader:
        batches = iter(reader)
        next(batches)
        with pytest.raises(SampleError, match=r"\(.*for top 'data', expected (up to )?\(8, 6, 6\); if batches differ"):
            next(batches)


def test_postprocess_gets_samples_of_one_shape() -> None:
    hooks: dict[str, Any] = {
        "decode": lambda sample, _: {"data": np.zeros(1 + sample.index % 2)},
        "postprocess": lambda batch: None,
        "max_shapes": {"data": [2]},
    }
    with (
        BatchReader({"arrays": {"x": np.arange(8)}}, batch_size=4, num_loaders=0, **hooks) as reader,
        pytest.raises(SampleError, match=r"postprocess needs samples of one shape, but .*'data' has up to \(2,\)"),
    ):
        next(iter(reader))


def test_postprocess_in_place_costs_no_second_memory() -> None:
    def postprocess(batch: HookBatch) -> None:
        batch["data"] //= 2

    got = delivered(postprocess=postprocess)
    assert got["data"].dtype == np.uint8
    np.testing.assert_array_equal(got["data"], pixels(got["label"]) // 2)


def test_a_hook_knows_its_samples_and_its_epoch() -> None:
    def postprocess(batch: HookBatch) -> dict[str, Any]:
        return {"index": batch.indices, "epoch": np.full(len(batch.indices), batch.epoch)}

    settings: dict[str, Any] = {"batch_size": 8, "epochs": 2, "shuffle": True, "num_loaders": 2}
    with BatchReader(Pictures(), postprocess=postprocess, **settings) as reader:
        for batch in reader:
            assert batch["index"].tolist() == batch.indices.tolist() == batch["label"].tolist()
            assert set(batch["epoch"].tolist()) == {batch.epoch}


def test_a_hook_knows_the_samples_that_took_the_place_of_bad_ones() -> None:
    def decode(sample: Sample, _: np.random.Generator) -> dict[str, Any]:
        if sample.index in (7, 30):
            raise ValueError("bad")
        return {"label": sample["label"]}

    def postprocess(batch: HookBatch) -> dict[str, Any]:
        return {"index": batch.indices}

    settings: dict[str, Any] = {"batch_size": 8, "epochs": 1, "num_loaders": 2, "on_error": "replace"}
    with BatchReader(Pictures(), decode=decode, postprocess=postprocess, **settings) as reader:
        for batch in reader:
            assert batch["index"].tolist() == batch.indices.tolist() == batch["label"].tolist()
            assert not {7, 30} & {*batch["index"].tolist()}


def _later(label: int, change: Callable[[HookBatch], Any]) -> Callable[[HookBatch], Any]:
    """A hook that does something else in the batch that holds `label` than in the batch of setup."""

    def postprocess(batch: HookBatch) -> Any:
        return change(batch) if label in batch["label"] and len(batch["label"]) > 2 else {"new": batch["label"]}

    return postprocess


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda batch: {"new": batch["label"] + 0.5}, r"postprocess gave .*\.5.* float64 for top 'new'.*int64"),
        (lambda batch: {"new": batch["label"].astype(np.float64) * 1e30}, "for top 'new', which has the type int64"),
        (lambda batch: {"new": batch["data"]}, r"postprocess gave shape \(8, 3\) for top 'new', expected \(8,\)"),
        (lambda batch: {}, "postprocess gave no new, expected data, label, new"),
        (lambda batch: 7, "postprocess returned a int: expected a mapping"),
        (lambda batch: {"new": np.ma.masked_array(batch["label"])}, "postprocess gave a masked array for 'new'"),
        (lambda batch: {"new": [None] * 8}, "postprocess gave .None, .* for 'new', a list that NumPy can only hold as"),
    ],
)
def test_what_a_top_cannot_hold_is_an_error_that_names_it(change: Callable[[HookBatch], Any], told: str) -> None:
    with pytest.raises(SampleError, match=told):
        delivered(postprocess=_later(30, change), last_batch="drop")


@pytest.mark.parametrize("num_loaders", [0, 1])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda values: values[:2], r"shape \(2,\).* return the same shape for every sample, or declare max_shapes$"),
        (lambda values: values / 2, r'same type for every sample, for example by \.astype\("uint8"\)$'),
        (lambda _: None, r"for 'data', a NoneType that NumPy can only hold as an object: .*, or text$"),
    ],
)
def test_a_wrong_result_of_decode_says_what_to_return_and_advises_no_repair_of_the_sample(
    num_loaders: int, change: Callable[[Any], Any], says: str
) -> None:
    def decode(sample: Sample, _rng: np.random.Generator) -> dict[str, Any]:
        data = sample["data"]
        return {**sample, "data": change(data) if sample["label"] == 30 else data}

    with pytest.raises(SampleError, match=rf"\): (top 'data' got|decode returned) .*{says}") as caught:
        delivered(num_loaders, decode=decode)
    assert isinstance(caught.value.__cause__, SampleShapeError)


@pytest.mark.parametrize("on_error", ["raise", "replace"])
@pytest.mark.parametrize("num_loaders", [0, 1])
def test_the_error_of_a_hook_over_a_batch_advises_nothing_that_is_for_samples(on_error: str, num_loaders: int) -> None:
    with pytest.raises(SampleError, match=r"ZeroDivisionError: .* by zero; fix the hook$"):
        delivered(num_loaders, postprocess=_later(30, lambda _: 1 // 0), on_error=on_error)


def test_a_breakpoint_in_a_loader_is_an_error_that_says_where_it_works() -> None:
    def decode(sample: Sample, rng: np.random.Generator) -> Sample:
        if os.environ.get("BLOBFEED_ROLE") == "loader":
            breakpoint()  # noqa: T100 - what is tested
        return sample

    with pytest.raises(SampleError, match=r"BdbQuit; a debugger cannot talk to you in a loader: set num_loaders: 0$"):
        delivered(1, decode=decode)


def test_a_whole_number_of_more_digits_than_a_float_has_is_an_error_too() -> None:
    def postprocess(batch: HookBatch) -> dict[str, Any]:
        return {"new": batch["label"] + 2**53 if 30 in batch["label"] else batch["label"] * 0.5}

    with pytest.raises(SampleError, match=r"int64 for top 'new', which has the type float64 .* cannot hold it"):
        delivered(postprocess=postprocess)


def test_another_type_that_holds_the_same_numbers_is_no_error() -> None:
    got = delivered(postprocess=_later(30, lambda batch: {"new": batch["label"].astype(np.float64)}))
    assert got["new"].dtype == np.int64
    np.testing.assert_array_equal(got["new"], got["label"])


@pytest.mark.parametrize("value", [3, np.float32(1.0), np.zeros(3)])
def test_a_postprocess_without_rows_is_refused_in_setup(value: Any) -> None:
    with pytest.raises(ParameterError, match="for top 'data': expected an array of numbers whose first axis has the 8"):
        BatchReader(Pictures(), batch_size=8, postprocess=lambda batch: {"data": value})


# ---- random numbers


def mixup(batch: HookBatch, rng: np.random.Generator) -> dict[str, Any]:
    other = rng.permutation(len(batch["data"]))
    share = rng.beta(0.4, 0.4)
    return {"data": (share * batch["data"] + (1 - share) * batch["data"][other]).astype(np.float32)}


def of_the_global_generators(sample: Sample, _: np.random.Generator) -> dict[str, Any]:
    return {"numpy": np.random.rand(), "python": random.random(), "label": sample["label"]}  # noqa: NPY002


def globally_mixed(batch: HookBatch) -> dict[str, Any]:
    return {"other": np.random.permutation(batch["label"])}  # noqa: NPY002


@pytest.mark.parametrize(
    "hooks",
    [{"postprocess": mixup}, {"decode": of_the_global_generators}, {"postprocess": globally_mixed}],
    ids=["mixup", "global generators", "global generators over batches"],
)
def test_random_numbers_do_not_depend_on_the_number_of_loaders(hooks: dict[str, Any]) -> None:
    none, several = (delivered(num_loaders, **hooks) for num_loaders in (0, 5))
    assert {name: array.tobytes() for name, array in none.items()} == {n: a.tobytes() for n, a in several.items()}


def _by_torch(sample: Sample, _: np.random.Generator) -> dict[str, Any]:
    import torch

    return {"noise": torch.rand(3).numpy()}


class _ByTorch:
    def __call__(self, sample: Sample, rng: np.random.Generator) -> dict[str, Any]:
        from torch import rand

        return {"noise": rand(3).numpy()}


@pytest.mark.parametrize("decode", [_by_torch, _ByTorch()])
def test_random_numbers_of_torch_are_the_samples_though_the_hook_itself_imports_it(decode: Any) -> None:
    pytest.importorskip("torch")
    one, two = (delivered(num_loaders, decode=decode)["noise"] for num_loaders in (0, 1))
    np.testing.assert_array_equal(one, two)
    assert len(np.unique(one, axis=0)) == len(one)


def test_random_numbers_of_torch_are_the_epochs_though_the_sampler_itself_imports_it() -> None:
    pytest.importorskip("torch")

    def sampler(epoch: int, samples: int, rng: np.random.Generator) -> Any:
        import torch

        return torch.randperm(samples).numpy()

    one, two = (delivered(num_loaders, sampler=sampler, shuffle=False)["label"] for num_loaders in (0, 1))
    np.testing.assert_array_equal(one, two)


def test_every_sample_has_random_numbers_of_its_own() -> None:
    got = delivered(decode=of_the_global_generators)
    assert len(set(got["numpy"].tolist())) == len(set(got["python"].tolist())) == SAMPLES


def test_a_trial_in_setup_leaves_the_trainers_global_generators_alone() -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = random.random(), np.random.rand()  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    BatchReader(Pictures(), batch_size=8, decode=of_the_global_generators, postprocess=globally_mixed).close()
    assert (random.random(), np.random.rand()) == expected  # noqa: NPY002


def test_a_limit_that_a_hook_sets_holds_in_its_loaders_and_not_in_the_trainer() -> None:
    files = resource.RLIMIT_NOFILE
    before = resource.getrlimit(files)

    def decode(_sample: Sample, _rng: np.random.Generator) -> dict[str, Any]:
        resource.setrlimit(files, (before[0] - 1, before[1]))
        return {"label": resource.getrlimit(files)[0]}

    with BatchReader(Pictures(), batch_size=8, decode=decode, num_loaders=1, epochs=1) as reader:
        assert resource.getrlimit(files) == before
        assert {limit for batch in reader for limit in batch["label"].tolist()} == {before[0] - 1}
    assert resource.getrlimit(files) == before


def test_the_global_generators_can_be_left_alone() -> None:
    def decode(sample: Sample, _: np.random.Generator) -> dict[str, Any]:
        np.random.seed(7)  # noqa: NPY002
        return {"label": sample["label"], "drawn": np.random.rand()}  # noqa: NPY002

    assert len(set(delivered(decode=decode, seed_globals=False)["drawn"].tolist())) == 1


# ---- no more ahead than was asked for


@pytest.mark.parametrize("ahead", [1, 2, 5, 16])
def test_no_more_batches_are_made_ahead_than_were_asked_for(ahead: int, tmp_path: Path) -> None:
    made = tmp_path / "made"

    def postprocess(batch: HookBatch) -> None:
        if os.environ.get("BLOBFEED_ROLE") == "loader":
            with made.open("a") as file:
                print(batch.indices[0], file=file)

    settings: dict[str, Any] = {"batch_size": 2, "num_loaders": 1, "prefetch_batches": ahead}
    with BatchReader(Pictures(), postprocess=postprocess, **settings) as reader:
        batches = iter(reader)
        for taken in range(1, 20):
            next(batches)
            count = len(made.read_text().split())
            assert count <= taken + ahead, f"{count} batches were made when {taken} had been taken"
        wait_until(lambda: len(made.read_text().split()) >= 19 + ahead // 2, "batches made ahead")
