"""Parquet and Arrow files: rows as pyarrow reads them, by few reads, and a Hugging Face data set of pictures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from blobfeed.readers.opening import make_plan
from blobfeed.sources.parquet import Values, form_of
from blobfeed.workers.api import Hooks, check_parameters
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import BatchReader, RaggedRows
from tests.support.object_servers import range_server
from tests.support.part import examples
from tests.support.pictures import encoded, noise, photograph
from tests.support.stored import in_loader, opened, rows_of

SIZES = st.integers(0, 3)
TYPES = st.recursive(
    st.sampled_from([pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.bool_()]),
    lambda kinds: st.one_of(
        st.builds(pa.list_, kinds), st.builds(pa.large_list, kinds), st.builds(pa.list_, kinds, st.integers(1, 3))
    ),
    max_leaves=3,
) | st.sampled_from([pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])


@st.composite
def columns(draw: st.DrawFn) -> pa.Table:
    """Two columns of any type, whose inner lists are of one length in each row, and no text is empty."""
    rows = draw(st.integers(1, 9))
    names = {f"c{number}": draw(TYPES) for number in range(2)}
    return pa.table({name: pa.array([draw(values(kind)) for _ in range(rows)], kind) for name, kind in names.items()})


@st.composite
def values(draw: st.DrawFn, kind: pa.DataType) -> Any:
    sizes: list[int] = []
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        sizes.append(kind.list_size if pa.types.is_fixed_size_list(kind) else draw(SIZES))
        kind = kind.value_type
    return draw(_filled(kind, sizes))


def _filled(kind: pa.DataType, sizes: list[int]) -> st.SearchStrategy[Any]:
    if sizes:
        return st.lists(_filled(kind, sizes[1:]), min_size=sizes[0], max_size=sizes[0])
    if pa.types.is_boolean(kind):
        return st.booleans()
    if kind in (pa.binary(), pa.large_binary()):
        return st.binary(max_size=5)
    if kind in (pa.string(), pa.large_string()):
        return st.text("aé", min_size=1, max_size=5)
    number = st.integers(0, 100)
    return number.map(np.float16) if pa.types.is_float16(kind) else number


@pytest.mark.parametrize("form", ["parquet", "arrow", "feather"])
@examples(60)
@given(table=columns(), group=st.integers(1, 4), data=st.data())
def test_rows_are_those_that_pyarrow_reads(
    form: str, table: pa.Table, group: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("a")
    path = folder / f"a.{form}"
    if form == "parquet":
        pq.write_table(table, path, row_group_size=group)
    else:
        write = pa.ipc.new_stream if form == "arrow" else pa.ipc.new_file
        options = pa.ipc.IpcWriteOptions(compression=data.draw(st.sampled_from([None, "lz4"])))
        with write(path, table.schema, options=options) as stream:
            stream.write_table(table, max_chunksize=group)
    source = in_loader(opened("parquet", folder, path=path.name))
    assert len(source) == len(table)
    indices = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=12))
    for name, rows in rows_of(source, indices).items():
        found = [rows.get(n) if isinstance(rows, RaggedRows) else rows[n] for n in range(len(indices))]
        for value, index in zip(found, indices, strict=True):
            expected = table.column(name)[index].as_py()
            if isinstance(expected, str | bytes):
                expected = expected.encode() if isinstance(expected, str) else list(expected)
            assert np.asarray(value).tolist() == np.asarray(expected).tolist()


def _unregistered(name: str, metadata: Any, kind: pa.DataType) -> pa.Field:
    """A column of an extension type whose library is not imported."""
    declared = {"ARROW:extension:name": name, "ARROW:extension:metadata": json.dumps(metadata)}
    return pa.field("x", kind, metadata=declared)


X = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
FLAT = pa.FixedSizeListArray.from_arrays(X.ravel(), 6)
TURNED = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0]), FLAT)
DECLARED: dict[str, tuple[pa.Field, Any, Any]] = {
    "a tensor": (pa.field("x", TURNED.type), TURNED, TURNED.to_numpy_ndarray()),
    "lists of tensors": (
        pa.field("x", pa.list_(TURNED.type)),
        pa.ListArray.from_arrays([0, 1, 4], TURNED),
        [X[:1].transpose(0, 2, 1), X[1:].transpose(0, 2, 1)],
    ),
    "Ray's, with a null": (
        _unregistered("ray.data.arrow_tensor_v2", [2, 3], pa.large_list(pa.float32())),
        pa.array([*X.reshape(4, 6).tolist(), None], pa.large_list(pa.float32())),
        X,
    ),
    "Hugging Face's": (
        _unregistered(
            "datasets.features.features.Array2DExtensionType",
            [[2, 3], "float32"],
            TYPE := pa.list_(pa.list_(pa.float32())),
        ),
        pa.array(X.tolist(), TYPE),
        X,
    ),
    "Hugging Face's of any length": (
        _unregistered("datasets.features.features.Array2DExtensionType", [[None, 3], "float32"], TYPE),
        pa.array([X[0].tolist(), X[1, :1].tolist()], TYPE),
        [X[0], X[1, :1]],
    ),
}
if hasattr(pa, "bool8"):  # since pyarrow 18
    DECLARED["truth values"] = (
        pa.field("x", pa.bool8()),
        pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 3], pa.int8())),
        np.array([False, True]),
    )


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("name", DECLARED)
def test_what_an_extension_type_declares_is_applied(name: str, form: str, tmp_path: Path) -> None:
    field, array, expected = DECLARED[name]
    table = pa.Table.from_arrays([array], schema=pa.schema([field]))
    if form == "parquet":
        pq.write_table(table, tmp_path / "a.parquet")
    else:
        with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as stream:
            stream.write_table(table)
    source = in_loader(opened("parquet", tmp_path, path=f"a.{form}"))
    rows = rows_of(source, range(len(expected)))["x"]
    assert rows.spec.varies if isinstance(expected, list) else rows.dtype == expected.dtype
    assert all(map(np.array_equal, rows, expected))


def test_a_column_of_pictures_is_named_or_known_by_its_type(tmp_path: Path) -> None:
    image = photograph()[:40, :60]
    stored = encoded(image, ".png")
    pq.write_table(pa.table({"raw": [stored], "image": [{"path": "a.png", "bytes": stored}]}), tmp_path / "a.parquet")
    given: dict[str, Any] = {"path": "a.parquet", "equal_sizes": True}
    planes = image.transpose(2, 0, 1)
    rows = rows_of(opened("parquet", tmp_path, columns={"data": "image", "label": "raw"}, color="bgr", **given), [0])
    np.testing.assert_array_equal(rows["data"][0], planes)
    assert rows["label"].get(0).tobytes() == stored
    rows = rows_of(opened("parquet", tmp_path, pictures=["raw"], **given), [0])
    np.testing.assert_array_equal(rows["raw"][0], planes[::-1])
    assert rows["image"].get(0).tobytes() == stored


@pytest.mark.parametrize("groups", [0, 1])
@pytest.mark.parametrize("words", [["a", "bc", "d"], [1, 2, 3]])
def test_a_file_without_rows_adds_nothing_wherever_it_stands(tmp_path: Path, words: list[Any], groups: int) -> None:
    table = pa.table({"data": words})
    pq.write_table(table, tmp_path / "b.parquet", row_group_size=2)
    for name in ("a", "c"):
        with pq.ParquetWriter(tmp_path / f"{name}.parquet", table.schema) as writer:
            for _ in range(groups):
                writer.write_table(table.slice(0, 0))
    given: dict[str, Any] = {"batch_size": 3, "shuffle": "chunk", "shuffle_window": 2, "num_loaders": 0, "epochs": 1}
    with BatchReader({"parquet": {"path": str(tmp_path)}}, **given) as reader:
        (batch,) = reader
    assert sorted(batch["data"].astype("U").tolist()) == sorted(map(str, words))


def test_a_damaged_end_of_a_list_is_found() -> None:
    lists = pa.ListArray.from_buffers(
        pa.list_(pa.int8()),
        2,
        [None, pa.py_buffer(np.array([0, 3, 1], "i4"))],
        children=[pa.array([1, 2, 3], pa.int8())],
    )
    with pytest.raises(ValueError, match="damaged"):
        Values(lists, form_of(pa.field("data", lists.type), ""))


def test_row_groups_in_object_storage_are_read_by_a_request_for_each_column(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 1 << 60, 40_000)
    table = pa.table({"data": values, "other": values, "label": np.arange(40_000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10_000)
    with range_server() as server:
        server.objects["a.parquet"] = (tmp_path / "a.parquet").read_bytes()
        source = in_loader(opened("parquet", tmp_path, ["data", "label"], path=server.url("a.parquet")))
        rows_of(source, [0])  # the footer, too
        server.requests.clear()
        source.will_need(np.array([39_000, 15_000]))
        rows = rows_of(source, [39_000, 15_000])
        np.testing.assert_array_equal(rows["data"], values[[39_000, 15_000]])
        assert rows["label"].tolist() == [39_000, 15_000]
        assert len(server.requests) == 4
        rows_of(source, [12_345, 30_000])
        assert len(server.requests) == 4


def test_a_run_over_parquet_starts_no_thread_of_pyarrows_in_the_trainer(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"data": np.arange(5_000.0), "words": ["a"] * 5_000}), tmp_path / "a.parquet", row_group_size=500
    )
    code = f"""
import os; import numpy, pyarrow; before = len(os.listdir("/proc/self/task"))
from blobfeed import BatchReader
source = {{"parquet": {str(tmp_path / "a.parquet")!r}}}
for loaders in 0, 1:
    with BatchReader(source, batch_size=64, epochs=1, num_loaders=loaders) as reader:
        print(sum(len(batch["data"]) for batch in reader), len(os.listdir("/proc/self/task")) - before)
"""
    run = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.splitlines() == ["5000 0", "5000 2"]  # those of ZeroMQ


def test_each_column_of_pictures_has_the_size_of_its_own_first_one(tmp_path: Path) -> None:
    sizes = {"left": (4, 6), "right": (5, 3)}
    pictures = {name: [encoded(noise(*size), ".png")] * 2 for name, size in sizes.items()}
    pq.write_table(pa.table(pictures), tmp_path / "a.parquet")
    source = opened("parquet", tmp_path, path="a.parquet", pictures=["left", "right"], equal_sizes=True)
    rows = rows_of(source, [1])
    for name, size in sizes.items():
        np.testing.assert_array_equal(rows[name][0], noise(*size).transpose(2, 0, 1)[::-1])


@pytest.mark.parametrize(("top", "any_loader"), [("image", True), ("label", False)])
def test_any_loader_makes_pictures_of_a_row_group_and_one_loader_its_numbers(
    tmp_path: Path, top: str, any_loader: bool
) -> None:
    rows: dict[str, Any] = {"image": [{"path": "", "bytes": encoded(noise(8, 8), ".png")}] * 40, "label": range(40)}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet", row_group_size=10)
    given = {"source": {"parquet": {"path": "a.parquet", "equal_sizes": True}}, "tops": [top], "shuffle": "chunk"}
    parameters = check_parameters({**given, "shuffle_window": 2, "batch_size": 20})
    schedule = make_plan(parameters, Hooks(), tmp_path, True, None).schedule()
    assert schedule.open(1)
    assert schedule.affinity(0, 0) == (None if any_loader else 0)
