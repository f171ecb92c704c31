"""A user's own code in the pipeline: what decode and postprocess make is what comes out, or an error says why not."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from blobfeed.workers.api import HookBatch, IndexArray, NamedRows

from blobfeed import (
    ArraySpec,
    BatchReader,
    ExtraMissing,
    Field,
    LayerHarness,
    MultiProcessInputLayer,
    Records,
    Sample,
    Store,
    StreamSource,
    Table,
)
from tests.support.part import some_of
from tests.support.waiting import wait_until

from .own_code import SAMPLES, Pictures, delivered, pixels


@pytest.mark.parametrize("decode", [None, dict])
def test_a_source_may_return_the_rows_that_it_has_written_into(decode: Any) -> None:
    class Telling(Pictures):
        def read(self, indices: IndexArray, out: NamedRows) -> Any:
            super().read(indices, out)
            return out["label"]  # as np.take(…, out=out["label"]) does

    hook = decode and (lambda sample, rng: dict(sample))
    with BatchReader(Telling(), decode=hook, batch_size=4, num_loaders=0) as reader:
        assert next(iter(reader))["label"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("device", ["", "cpu"])
def test_what_hooks_make_in_another_byte_order_comes_in_this_machines(device: str) -> None:
    def decode(sample: Sample, _: np.random.Generator) -> Any:
        order = "><"[int(sample["label"]) % 2]
        return {"wide": np.append(sample["data"], sample["label"]).astype(f"{order}i4")}

    def postprocess(batch: HookBatch) -> dict[str, Any]:
        return {"sums": batch["wide"].sum(axis=1).astype(">f8")}

    got = delivered(decode=decode, postprocess=postprocess, device=device)
    assert {name: values.dtype.str for name, values in got.items()} == {"wide": "<i4", "sums": "<f8"}
    np.testing.assert_array_equal(got["wide"][:, :3].astype(np.uint8), pixels(got["wide"][:, 3]))
    np.testing.assert_array_equal(got["sums"], got["wide"].sum(axis=1))


@pytest.mark.parametrize("as_stream", [False, True])
def test_a_postprocess_hook_may_be_written_for_whole_batches(as_stream: bool) -> None:
    def centres(batch: HookBatch) -> dict[str, Any]:
        return {"centre": batch["label"].reshape(2, 4).mean(axis=1).repeat(4)}

    source: Any = StreamSource(lambda: ({"label": label} for label in range(SAMPLES))) if as_stream else Pictures()
    with BatchReader(source, postprocess=centres, batch_size=8, epochs=1, num_loaders=0) as reader:
        assert next(iter(reader))["centre"].tolist() == [1.5] * 4 + [5.5] * 4
    with pytest.raises(ValueError, match=r"\b7\b"):
        BatchReader(source, postprocess=centres, batch_size=7)


# ---- tops are what comes out


def _backwards(rows: Any) -> Any:
    """In each batch of eight."""
    return rows.reshape(-1, 8, *rows.shape[1:])[:, ::-1].reshape(rows.shape)


def _changed_and_returned(sample: Sample, rng: np.random.Generator) -> Sample:
    sample["data"] = sample["data"] / np.float32(2)
    sample["twice"] = 2 * sample.pop("label")
    return sample


def _converts_some(batch: HookBatch) -> None:
    if 30 not in batch["label"]:
        batch["data"] = batch["data"].astype(np.float32)


def _assigns(batch: HookBatch) -> None:
    batch["data"] = batch["data"] / 255
    batch["mean"] = batch["data"].mean(axis=1)


def _halves_in_place(batch: HookBatch) -> None:
    batch["data"] //= 2


def scaled(batch: HookBatch, scale: float) -> dict[str, Any]:
    return {"data": batch["data"] * scale}


MAKES: dict[str, tuple[dict[str, Any], Callable[[Any, Any], dict[str, Any]]]] = {
    "decode makes tops and leaves others out": (
        {"decode": lambda sample, _: {"info": np.array([3, 1], np.float32), "wide": np.repeat(sample["data"], 2)}},
        lambda label, data: {"info": np.array([[3, 1]] * SAMPLES, np.float32), "wide": np.repeat(data, 2, axis=1)},
    ),
    "decode changes its sample and returns it": (
        {"decode": _changed_and_returned},
        lambda label, data: {"data": data / np.float32(2), "twice": 2 * label},
    ),
    "another type": (
        {"postprocess": lambda batch: {"data": ((batch["data"] - 127.5) / 127.5).astype(np.float32)}},
        lambda label, data: {"data": ((data - 127.5) / 127.5).astype(np.float32), "label": label},
    ),
    "another type in some batches": (
        {"postprocess": _converts_some},
        lambda label, data: {"data": data.astype(np.float32), "label": label},
    ),
    "the same numbers in another type": (
        {"postprocess": lambda batch: {"new": batch["label"].astype(float if 30 in batch["label"] else int)}},
        lambda label, data: {"data": data, "label": label, "new": label},
    ),
    "in place": ({"postprocess": _halves_in_place}, lambda label, data: {"data": data // 2, "label": label}),
    "assigned": (
        {"postprocess": _assigns},
        lambda label, data: {"data": data / 255, "label": label, "mean": (data / 255).mean(axis=1)},
    ),
    "rows of a top that changes": (
        {"postprocess": lambda batch: {"new": [*batch["data"][::-1]], "data": [0 * row for row in batch["data"]]}},
        lambda label, data: {"data": 0 * data, "label": label, "new": _backwards(data)},
    ),
    "other shapes, chosen and in this order": (
        {
            "postprocess": lambda batch: {"pairs": np.stack([batch["data"], batch["data"][::-1]], axis=1)},
            "tops": ["pairs", "label"],
        },
        lambda label, data: {"pairs": np.stack([data, _backwards(data)], axis=1), "label": label},
    ),
    "tops that change places": (
        {
            "decode": lambda sample, _: {"low": sample["label"], "high": sample["label"] + 100},
            "postprocess": lambda batch: {"low": batch["high"], "high": batch["low"]},
        },
        lambda label, data: {"low": label + 100, "high": label},
    ),
    **{
        f"a parameter that is no generator, {name}": (
            {"postprocess": hook},
            lambda label, data: {"data": data * 0.5, "label": label},
        )
        for name, hook in {
            "bound": partial(scaled, scale=0.5),
            "by name": lambda batch, **scale: scaled(batch, 0.5, **scale),
            "with a default": lambda batch, scale=0.5: scaled(batch, scale),
        }.items()
    },
}
"""The settings of a reader, and the tops that come out, made of all labels and data in their order."""


@pytest.mark.parametrize("case", MAKES)
def test_what_hooks_make_is_what_comes_out(case: str) -> None:
    settings, expected = MAKES[case]
    label = delivered()["label"]
    got, wanted = delivered(**settings), expected(label, pixels(label))
    assert list(got) == list(wanted)
    for name, values in wanted.items():
        assert got[name].dtype == values.dtype
        np.testing.assert_array_equal(got[name], values)


@pytest.mark.parametrize(
    "hook",
    [
        lambda batch, rng=None: {"new": rng.random(8)},
        lambda batch, rng=None, /: {"new": rng.random(8)},
        lambda batch, *, rng=None: {"new": rng.random(8)},
        lambda batch, strength=1, rng=None: {"new": rng.random(8) * strength},
        lambda batch, *, rng: {"new": rng.spawn(1) and rng.random(8)},
    ],
)
def test_a_generator_may_have_a_default_or_be_taken_by_name(hook: Callable[..., Any]) -> None:
    plain = delivered(postprocess=lambda batch, rng: {"new": rng.random(8)})["new"]
    assert len({*plain}) == len(plain)
    np.testing.assert_array_equal(delivered(postprocess=hook)["new"], plain)


@pytest.mark.parametrize("num_loaders", some_of([0, 1], 2))
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


class _Bytes(Store[int]):
    def read(self, place: int) -> bytes:
        return bytes([place])


def _needs_a_library(record: bytes, index: int) -> NoReturn:
    raise ExtraMissing("pip install it") from OSError("it is not there")


def test_an_error_that_says_nothing_of_a_sample_passes_a_table_with_its_own_cause() -> None:
    fields = {"data": Field[bytes](ArraySpec((), np.dtype(np.uint8)), lambda record, row, rows: None)}
    table = Table("bytes", [Records(_Bytes(), 8, fields, parse=_needs_a_library)], held_in="memory")
    with pytest.raises(ExtraMissing) as caught:
        BatchReader(table, batch_size=4, num_loaders=0)
    assert isinstance(caught.value.__cause__, OSError)


# ---- whole batches


@pytest.mark.parametrize("num_loaders", some_of([0, 2], 2))
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


@pytest.mark.parametrize("num_loaders", some_of([0, 2], 2))
def test_postprocess_may_make_a_top_of_another_name_in_different_shapes(num_loaders: int) -> None:
    images = np.arange(24 * 36).reshape(24, 6, 6)
    given: dict[str, Any] = {"batch_size": 8, "epochs": 1, "num_loaders": num_loaders, "tops": ["small"]}
    given["postprocess"] = lambda batch: {"small": batch["data"][:, 3 + batch.indices[0] // 8 :]}
    with BatchReader({"arrays": {"data": images}}, max_shapes={"small": [3, 6]}, **given) as reader:
        for number, batch in enumerate(reader):
            np.testing.assert_array_equal(batch["small"], images[8 * number : 8 * number + 8, 3 + number :])


def backwards(epoch: int, samples: int, rng: np.random.Generator) -> IndexArray:
    return np.arange(samples)[::-1]


@pytest.mark.parametrize("order", [{"shuffle": True, "num_loaders": 2}, {"sampler": backwards, "num_loaders": 0}])
def test_a_hook_knows_its_epoch_and_its_samples_those_that_took_the_place_of_bad_ones_too(order: Any) -> None:
    def decode(sample: Sample, _: np.random.Generator) -> dict[str, Any]:
        if sample.index in (7, 30):
            raise ValueError("bad")
        return {"label": sample["label"]}

    def postprocess(batch: HookBatch) -> dict[str, Any]:
        return {"index": batch.indices, "epoch": np.full(len(batch.indices), batch.epoch)}

    settings: dict[str, Any] = {"batch_size": 8, "epochs": 2, "on_error": "replace"}
    with BatchReader(Pictures(), **order, decode=decode, postprocess=postprocess, **settings) as reader:
        for batch in reader:
            assert batch["index"].tolist() == batch.indices.tolist() == batch["label"].tolist()
            assert not {7, 30} & {*batch["index"].tolist()}
            assert set(batch["epoch"].tolist()) == {batch.epoch}


# ---- random numbers


def _by_torch(sample: Sample, _: np.random.Generator) -> dict[str, Any]:
    import torch

    return {"noise": torch.rand(3).numpy()}


def test_random_numbers_of_torch_are_the_samples_though_the_hook_itself_imports_it() -> None:
    pytest.importorskip("torch")
    one, two = (delivered(num_loaders, decode=_by_torch)["noise"] for num_loaders in (0, 1))
    np.testing.assert_array_equal(one, two)
    assert len(np.unique(one, axis=0)) == len(one)


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


LENT = 3
"""The slots of a reader beside those ahead: the batches that its user keeps. While fewer are kept, they hold others."""


@pytest.mark.parametrize("ahead", some_of([2, 1, 5, 16], 2))
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
            assert count <= taken + ahead + LENT, f"{count} batches were made when {taken} had been taken"
        wait_until(lambda: len(made.read_text().split()) >= 19 + ahead // 2, "batches made ahead")
