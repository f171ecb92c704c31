"""The entrants. Each one is a function in a module of this folder: `open(work, samples)` gives an iterator.

It yields (data, labels) without end: `data` is a batch of `work.shape` and `work.dtype` in the trainer's own process, a
NumPy array or a torch tensor. What stands at the top of the module is imported before the clock starts; everything the
function does counts as the time to the first batch. Everybody has two workers and batches of 64; "blobfeed",
"blobfeed, BatchReader" and "blobfeed, layer" have the default, `num_loaders: auto`. Most peers hand over their own
memory, a fresh one each time, and so does BatchReader; "blobfeed", with any number of loaders, and the layer put each
batch into the trainer's blob. In works with floats every tuned entrant fills memory that it has allocated before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..works import Work

WORKERS = 2

Batch = tuple[Any, Any]
"""Data and labels: arrays or tensors of equal length."""


class Open(Protocol):
    def __call__(self, work: Work, samples: int, **options: Any) -> AbstractContextManager[Iterator[Batch]]: ...


@dataclass(frozen=True)
class Entrant:
    """`packages`: what must be importable; `peer`: runs in the peers' environment, not in the project's own.

    `works`: the only works it takes part in, by name; none: all. `warmup_epochs`: read so often before measuring.
    """

    name: str
    module: str
    function: str = "open_batches"
    options: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    peer: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    works: frozenset[str] = frozenset()
    warmup_epochs: int = 0
    checked: bool = True

    def takes(self, work: Work) -> bool:
        if self.name.startswith("limit: "):
            return self.name in [f"limit: {limit}" for limit in work.limits]
        return not self.works or work.name in self.works


def _blobfeed(name: str, *works: str, **parameters: Any) -> Entrant:
    return Entrant(name, "blobfeed_blobs", options=parameters, works=frozenset(works))


def _limit(name: str, function: str, checked: bool = False) -> Entrant:
    return Entrant(f"limit: {name}", "..limits", function, checked=checked)


_LARGE = frozenset({"hdf5_224", "npy_224", "hdf5_chunked", "hdf5_normalised", "stall_10ms", "stall_50ms"})
_FILLING = _LARGE - {"hdf5_normalised"} | {"hdf5_float"}
_JPEGS = frozenset({"jpeg", "jpeg_resized"})
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}

ENTRANTS = (
    _blobfeed("blobfeed", num_loaders="auto"),
    _blobfeed("blobfeed, in process", num_loaders=0),
    _blobfeed("blobfeed, 1 loader", num_loaders=1),
    _blobfeed("blobfeed, 2 loaders"),
    _blobfeed("blobfeed, 4 loaders", num_loaders=4),
    Entrant("blobfeed, BatchReader", "blobfeed_reader"),
    _blobfeed("blobfeed, shuffle: true", "hdf5_gzip", shuffle=True),
    Entrant("blobfeed, cached", "blobfeed_blobs", "open_cached", works=frozenset({"jpeg"}), warmup_epochs=1),
    Entrant("blobfeed, layer", "blobfeed_layer", works=frozenset({"hdf5_28", "hdf5_float"})),
    Entrant("plain loop", "plain_loop", peer=True),
    Entrant("plain loop, batched", "plain_loop", options={"batched": True}, peer=True),
    Entrant("mp.Queue", "queues", peer=True),
    Entrant("mp.Queue, assembler", "queues", "open_assembled", peer=True),
    Entrant("torch", "torch_loader", packages=("torch",), peer=True),
    Entrant("torch, tuned", "torch_loader", "open_tuned", packages=("torch",), peer=True, environment=_ONE_THREAD),
    Entrant(
        "torch, Pillow", "torch_loader", "open_pillow", packages=("torch", "PIL"), peer=True, works=frozenset({"jpeg"})
    ),
    Entrant("tensorpack", "tensorpack_runner", packages=("tensorpack",), peer=True),
    Entrant("tensorpack, batched", "tensorpack_runner", "open_batched", packages=("tensorpack",), peer=True),
    Entrant("grain", "grain_loader", packages=("grain",), peer=True),
    Entrant("grain, tuned", "grain_loader", "open_tuned", packages=("grain",), peer=True),
    Entrant("spdl", "spdl_threads", packages=("spdl.pipeline",), peer=True),
    Entrant("spdl, pooled", "spdl_threads", "open_pooled", packages=("spdl.pipeline",), peer=True, works=_LARGE),
    Entrant("spdl, filling", "spdl_threads", "open_filling", packages=("spdl.pipeline",), peer=True, works=_FILLING),
    Entrant(
        "spdl, turbo", "spdl_threads", "open_turbo", packages=("spdl.pipeline", "simplejpeg"), peer=True, works=_JPEGS
    ),
    Entrant("dali", "dali_cpu", packages=("nvidia.dali",), peer=True, works=_JPEGS),
    Entrant("ffcv", "ffcv_beton", packages=("ffcv",), peer=True, works=frozenset({"jpeg", "npy_224"})),
    Entrant("webdataset", "webdataset_tar", packages=("webdataset", "torch"), peer=True, works=frozenset({"jpeg"})),
    _limit("copy", "open_copy"),
    _limit("gather", "open_gather"),
    _limit("gather and convert", "open_gather_and_convert"),
    _limit("gather by two", "open_gather_by_two"),
    _limit("gather and convert by two", "open_gather_and_convert_by_two"),
    _limit("read and copy", "open_read_and_copy"),
    _limit("read and convert", "open_read_and_copy"),
    _limit("decode", "open_decode"),
    _limit("decompress", "open_decompress"),
)


def find_entrant(name: str) -> Entrant:
    return next(entrant for entrant in ENTRANTS if entrant.name == name)
