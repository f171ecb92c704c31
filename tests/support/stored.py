"""Reading a source as a loader does, and comparing all of what it gives with what was stored."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from blobfeed.sources import open_source
from blobfeed.workers.api import AnyArray, allocate_rows

from blobfeed import RaggedRows, Source

_NOBODY_WROTE_THIS = 0xA5


def opened(kind: str, base_dir: Path, tops: Sequence[str] | None = None, **options: Any) -> Source:
    """The source as the parameters declare it, checked as by setup."""
    source = open_source({kind: options}, tops=tops, base_dir=base_dir)
    source.check_samples()
    return source


def in_loader(source: Source) -> Source:
    """The source as it arrives in a loader."""
    arrived: Source = pickle.loads(pickle.dumps(source))
    return arrived


def rows_of(source: Source, indices: Sequence[int]) -> dict[str, Any]:
    """The rows that `read` gives, in memory that was full of something else before."""
    out = allocate_rows(source.specs, len(indices))
    for rows in out.values():
        memory = rows.memory if isinstance(rows, RaggedRows) else rows
        memory.reshape(-1).view(np.uint8)[:] = _NOBODY_WROTE_THIS
    source.read(np.array(indices, np.int64), out)
    return dict(out)


def assert_rows(source: Source, indices: Sequence[int], stored: Mapping[str, AnyArray]) -> None:
    """`stored`: all samples by top, in the order of their axes in which they must be delivered."""
    for top, rows in rows_of(source, indices).items():
        expected = stored[top][list(indices)]
        assert rows.dtype == expected.dtype.newbyteorder("="), top
        assert rows.shape == expected.shape, top
        assert rows.tobytes() == expected.astype(rows.dtype).tobytes(), f"{top} at {list(indices)}"


def assert_delivers(source: Source, stored: Mapping[str, AnyArray], patterns: Sequence[Sequence[int]]) -> None:
    """What arrives in a loader gives the samples of `stored`, whatever the order in which they are asked for."""
    with closing(in_loader(source)) as arrived:
        assert list(arrived.specs) == list(stored)
        for indices in patterns:
            arrived.will_need(np.array(indices, np.int64))
            assert_rows(arrived, indices, stored)
    source.close()


def assert_needs_no_h5py(source: Source, top: str, numbers: Sequence[int], folder: Path) -> None:
    """A process that gets `source` reads the samples `numbers`, whose `top` is their number, and h5py stays away."""
    (folder / "source.pickle").write_bytes(pickle.dumps(source))
    script = (
        "import pickle, sys, numpy as np, pathlib\n"
        "from blobfeed.workers.api import allocate_rows\n"
        "source = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        f"numbers = {list(numbers)}\n"
        "out = allocate_rows(source.specs, len(numbers))\n"
        "source.read(np.array(numbers), out)\n"
        f"assert out[{top!r}].tolist() == numbers\n"
        "assert 'h5py' not in sys.modules and 'torch' not in sys.modules, 'too much is imported'\n"
    )
    subprocess.run([sys.executable, "-c", script, str(folder / "source.pickle")], check=True)


def bytes_read() -> int:
    """The bytes that calls of this process have read, from the page cache as well."""
    return int(Path("/proc/self/io").read_text().split()[1])


def patterns(samples: int, seed: int = 0) -> list[list[int]]:
    """Orders that have their own ways through the code: forwards, backwards, shuffled, repeated, in runs, single."""
    shuffled = np.random.default_rng(seed).permutation(samples).tolist()
    middle = samples // 2
    return [
        list(range(samples)),
        list(range(samples - 1, -1, -1)),
        shuffled,
        [*shuffled[:5], *shuffled[:5]],
        [index % samples for index in (middle, middle + 1, middle + 2, 0, 1, middle, samples - 1)],
        [samples - 1],
        [],
    ]


def some_array(shape: Sequence[int], dtype: str, seed: int = 0) -> AnyArray:
    """Values that tell every element's place, as far as the type can hold them."""
    random = np.random.default_rng(seed).integers(0, 200, tuple(shape))
    if np.dtype(dtype).kind == "b":
        return np.equal(random % 2, 0)
    values: AnyArray = random.astype(dtype)
    return values
