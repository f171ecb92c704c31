"""The plug-ins that say which samples come, each a `Supply`: computed orders, samplers, streams, given batches.

Computed, drawn, stream and given are one file each; beside them stand what they are made from, and rows of streams.
"""

from __future__ import annotations

if __name__ != "blobfeed.supplies":
    raise ImportError(f"import blobfeed.supplies: as {__name__!r} its classes would exist a second time")

from .chunk_order import ChunkOrder
from .computed import BLOCK, EpochOrder, SequentialOrder, ShuffledOrder, rand_skip_of
from .drawn import MOST_SAMPLES, DrawnEpochs, DrawnSupply, draws_of, samples_in
from .mixed_order import MixedOrder, draws_per_pattern, even_pattern
from .ordering import Shuffle, make_order
from .samplers import (
    AboutSampler,
    BalancedSampler,
    HookSampler,
    IterableSampler,
    SubsetSampler,
    WeightedSampler,
    check_weights,
    draw_epoch,
    sampler_rng,
)
from .stream import FIX_STREAM, ShardRounds, StreamSupply
from .walk import Walk
