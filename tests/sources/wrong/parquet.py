"""Parquet and Arrow files that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from tests.support.catalogue import scenario
from tests.support.stored import opened


@scenario
def parquet(folder: Path, first: Any, /, *more: Any, **options: Any) -> Any:
    """Read files of these columns."""
    for number, each in enumerate((first, *more)):
        pq.write_table(pa.table(each), folder / f"{number}.parquet", row_group_size=2)
    return opened("parquet", folder, **{"path": "*.parquet", **options})


@scenario
def folder_with(folder: Path, /, **files: str) -> Any:
    """Read a folder that holds these JSON files."""
    for name, text in files.items():
        (folder / f"{name}.json").write_text(text)
    return opened("parquet", folder, path=".")


@scenario
def arrow(folder: Path, /, columns: Any, *, cut: int = 0) -> Any:
    table = pa.table(columns)
    with pa.ipc.new_stream(folder / "a.arrow", table.schema) as stream:
        stream.write_table(table)
    content = (folder / "a.arrow").read_bytes()
    (folder / "a.arrow").write_bytes(content[: len(content) - cut])
    return opened("parquet", folder, path="a.arrow")


_PICTURE = {"image": [{"bytes": b"no picture", "path": "a.jpg"}], "label": [1]}

_LISTED = pa.list_(pa.field("item", pa.int64(), metadata={"ARROW:extension:name": "pandas.period"}))


def _tensors(*shape: int) -> pa.Array:
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((1, *shape), np.float32))


SCENARIOS = {
    "parquet, an unknown column": parquet({"data": [1], "label": [2]}, columns={"data": "date"}),
    "parquet, no file": parquet({"data": [1]}, path="b.parquet"),
    "parquet, no rows": parquet({"data": pa.array([], pa.int64())}),
    "parquet, another type in the second file": parquet({"data": [1]}, {"data": [1.5]}),
    "parquet, no such column in the second file": parquet({"data": [1]}, {"date": [1]}),
    "parquet, a number that is null": parquet({"data": [1, 2, 3, None]}),
    "parquet, a list that holds null": parquet({"data": [[1], [2, None]]}),
    "parquet, a picture that is null": parquet(
        {"data": [{"bytes": None, "path": "a.jpg"}, {"bytes": b"1", "path": "b.jpg"}]}, max_height=9
    ),
    "parquet, lists of several lengths in a list": parquet({"data": [[[1], [2, 3]]]}),
    "parquet, lists of text": parquet({"data": [["a", "b"]]}),
    "parquet, dates": parquet({"data": pa.array([1, 2], pa.timestamp("s"))}),
    "parquet, a struct": parquet({"data": [{"a": 1}]}),
    "parquet, an unknown extension type in a list": parquet({"data": pa.nulls(1, _LISTED)}),
    "parquet, another shape in the second file": parquet({"data": _tensors(2, 3)}, {"data": _tensors(3, 2)}),
    "parquet, lists of pictures": parquet({"data": [_PICTURE["image"]]}),
    "parquet, pictures in lists": parquet({"data": [[b"a", b"b"]]}, pictures=["data"]),
    "parquet, no picture": parquet(_PICTURE, max_height=9),
    "parquet, a picture without a size": parquet(_PICTURE),
    "parquet, several splits": folder_with(dataset_dict=json.dumps({"splits": ["train", "test"]})),
    "parquet, a damaged list of splits": folder_with(dataset_dict='{"splits": ["train"'),
    "parquet, a list of files of another program": folder_with(state=json.dumps({"step": 3})),
    "parquet, an empty folder": folder_with(),
    "arrow, a dictionary": arrow({"data": pa.array(["a", "b"]).dictionary_encode()}),
    "arrow, without its end": arrow({"data": [1, 2]}, cut=8),
}
