"""Samples/s of shuffled Parquet and Arrow files: blobfeed against torch's DataLoader over two kinds of data sets.

    python -P -m benchmarks.parquet [--rounds 3]

20,000 images 3×32×32 of uint8, and 4,000 JPEGs of 256×256 pixels, each with its class, in row groups of 500 rows.
"datasets" is Hugging Face's library, of which DataLoader asks whole batches of any rows; it makes an Arrow file of a
Parquet file first. "pyarrow" is an expert's own loop: an IterableDataset whose workers take row groups in random order,
16 at a time, and cut shuffled batches out of them; OpenCV decodes. All use two processes and batches of 64, and take
turns. Of the arrays blobfeed keeps 32 MB of decoded row groups, which is one window and not the whole file. Needs the
extras `parquet`, `images` and `torch`, and `pip install datasets`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import torch

from blobfeed import BatchReader
from tests.support.pictures import encoded, picture

from .report import rate, table

_GROUP, _BATCH, _PROCESSES, _TOGETHER = 500, 64, 2, 16
_SHAPE = (3, 32, 32)
_SECONDS = 3.0
_OPTIONS: dict[str, dict[str, Any]] = {
    "arrays": {"chunk_cache_bytes": 32 << 20},
    "pictures": {"equal_sizes": True, "color": "rgb"},
}


def _arrays() -> pa.Table:
    values = pa.array(np.random.default_rng(0).integers(0, 256, 20_000 * int(np.prod(_SHAPE)), np.uint8))
    return pa.table(
        {"data": pa.FixedSizeListArray.from_arrays(values, int(np.prod(_SHAPE))), "label": np.arange(20_000)}
    )


def _pictures() -> pa.Table:
    jpegs = [encoded(picture(256, 256, name)) for name in ("china", "flower")]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    data = pa.array([{"bytes": jpegs[number % 2], "path": None} for number in range(4000)], kind)
    rows = pa.table({"data": data, "label": np.arange(4000)})
    features = {"data": {"_type": "Image"}, "label": {"_type": "Value", "dtype": "int64"}}
    return rows.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def _write(folder: Path) -> None:
    for name, rows in (("arrays", _arrays()), ("pictures", _pictures())):
        pq.write_table(rows, folder / f"{name}.parquet", row_group_size=_GROUP)
        with pa.ipc.new_stream(folder / f"{name}.arrow", rows.schema) as stream:
            stream.write_table(rows, max_chunksize=_GROUP)


def by_blobfeed(path: Path) -> Iterator[int]:
    options = {"path": str(path), **_OPTIONS[path.stem]}
    given: dict[str, Any] = {"batch_size": _BATCH, "num_loaders": _PROCESSES, "shuffle": "chunk"}
    with BatchReader({"parquet": options}, **given) as reader:
        for batch in reader:
            yield len(batch["label"])


def by_datasets(path: Path) -> Iterator[int]:
    import datasets  # type: ignore[import-not-found, import-untyped, unused-ignore]

    if path.suffix == ".arrow":
        rows = datasets.Dataset.from_file(str(path)).with_format("torch")
    else:
        rows = datasets.Dataset.from_parquet(str(path), cache_dir=str(path.parent)).with_format("torch")
    given: dict[str, Any] = {"batch_size": _BATCH, "num_workers": _PROCESSES}
    while True:
        for batch in torch.utils.data.DataLoader(rows, shuffle=True, **given):
            yield len(batch["label"])


class RowGroups(torch.utils.data.IterableDataset[Any]):
    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        rng = np.random.default_rng(worker.seed)
        file = pq.ParquetFile(self._path)
        mine = rng.permutation(np.arange(worker.id, file.num_row_groups, worker.num_workers))
        for first in range(0, len(mine), _TOGETHER):
            rows = file.read_row_groups(mine[first : first + _TOGETHER].tolist(), use_threads=False).combine_chunks()
            column, labels = rows.column("data").chunk(0), rows.column("label").to_numpy()
            if self._path.stem == "arrays":
                values = column.flatten().to_numpy().reshape(-1, *_SHAPE)
            order = rng.permutation(len(labels))
            for start in range(0, len(order), _BATCH):
                wanted = order[start : start + _BATCH]
                data = values[wanted] if self._path.stem == "arrays" else _decoded(column.field("bytes"), wanted)
                yield torch.from_numpy(data), torch.from_numpy(labels[wanted])


def _decoded(column: pa.Array, wanted: Any) -> Any:
    jpegs = (np.frombuffer(column[row].as_buffer(), np.uint8) for row in wanted.tolist())
    images: Any = [cv2.imdecode(jpeg, cv2.IMREAD_COLOR_RGB) for jpeg in jpegs]
    return np.stack([image.transpose(2, 0, 1) for image in images])


def by_pyarrow(path: Path) -> Iterator[int]:
    while True:
        for _, labels in torch.utils.data.DataLoader(RowGroups(path), batch_size=None, num_workers=_PROCESSES):
            yield len(labels)


_Way = Callable[[Path], Iterator[int]]
WORKS: dict[str, dict[str, _Way]] = {
    "arrays.arrow": {"blobfeed": by_blobfeed, "datasets": by_datasets},
    "arrays.parquet": {"blobfeed": by_blobfeed, "pyarrow": by_pyarrow, "datasets": by_datasets},
    "pictures.parquet": {"blobfeed": by_blobfeed, "pyarrow": by_pyarrow, "datasets": by_datasets},
}


def _rate(batches: Iterator[int]) -> float:
    for _ in range(8):
        next(batches)
    samples, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < _SECONDS:
        samples += next(batches)
    return samples / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    rates: dict[tuple[str, str], list[float]] = {(name, way): [] for name, ways in WORKS.items() for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder))
        for _ in range(rounds):
            for (name, way), found in rates.items():
                batches: Any = WORKS[name][way](Path(folder, name))
                found.append(_rate(batches))
                batches.close()
    medians = {key: statistics.median(found) for key, found in rates.items()}
    rows = [(*key, rate(each), f"{medians[key[0], 'blobfeed'] / each:.1f} ×") for key, each in medians.items()]
    print(table(("file", "read by", "samples/s", "blobfeed is"), rows))


if __name__ == "__main__":
    main()
