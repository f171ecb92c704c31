"""Chooses the supply of a run by its parameters, hooks and source."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..sources.mixed import MixedSource
from ..sources.stream import StreamSource
from ..workers.api import AnySource, Hooks, Parameters, Source
from ..workers.base import ParameterError
from ..workers.loading import RowDecoder, SampleDecoder
from ..workers.order import Supply
from ..workers.plan import max_loaders
from .computed import EpochOrder
from .drawn import DrawnSupply
from .make_sampler import OpenField, make_sampler
from .mixed_order import MixedOrder
from .ordering import make_order
from .stream import StreamSupply
from .stream_rows import StreamDecoder


class Chosen(NamedTuple):
    """The supply of a run, and what makes rows of its samples.

    `first`: a sample that occurs in its epochs; None if none is known yet.
    """

    supply: Supply
    decoder: type[RowDecoder]
    first: int | None


def make_supply(given: Parameters, hooks: Hooks, source: AnySource, base_dir: Path, open_field: OpenField) -> Chosen:
    """Return the supply for samples of `source`, with or without indices: what differs by that is chosen here.

    `open_field`: opens the source for one field alone. Raises ParameterError, SourceError.
    """
    sampler = make_sampler(given, hooks, source, base_dir, open_field)
    if isinstance(source, StreamSource):
        return Chosen(_stream(given, source), StreamDecoder, 0)
    assert isinstance(source, Source)
    if sampler is None:
        order = _order(given, source)
        _, at = order.land(given)
        return Chosen(order, SampleDecoder, int(order.indices(at.epoch * len(source) + at.item, 1)[0]))
    if given.num_loaders == 0 and given.remote_loaders is not None:
        raise ParameterError(
            f"num_loaders is 0 beside remote_loaders, and {sampler.about.name} draws epochs in a loader of this host, "
            "whose memory holds them: give num_loaders: 1"
        )
    return Chosen(DrawnSupply.by(sampler, len(source)), SampleDecoder, sampler.first)


def _order(given: Parameters, source: Source) -> EpochOrder:
    shuffle, seed, window = given.shuffle, given.seed, given.shuffle_window
    if isinstance(source, MixedSource):
        chunks = [part.chunk_samples for part in source.sources]
        sizes, weights = source.sizes, source.weights
        return MixedOrder(sizes, weights, shuffle=shuffle, seed=seed, chunk_samples=chunks, window_chunks=window)
    return make_order(
        len(source),
        shuffle=shuffle,
        seed=seed,
        chunk_samples=source.chunk_samples,
        window_chunks=window,
        chunks_are_cheap=source.chunks_are_cheap,
    )


def _stream(given: Parameters, source: StreamSource) -> StreamSupply:
    for name, value, why in (
        ("shuffle", given.shuffle, "use the stream's capacity"),
        ("rand_skip", given.rand_skip, "skip in the function that makes the stream"),
        ("cache", given.cache, "only indexed sources have one"),
    ):
        if value:
            raise ParameterError(f"parameter {name!r} is {value!r}, which a stream cannot have: {why}")
    remote = given.remote_loaders
    shards = source.shards or max(1, max_loaders(given) + (remote.most if remote else 0))
    return StreamSupply(shards, source.capacity, any_number=source.shards is None)
