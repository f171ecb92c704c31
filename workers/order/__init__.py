"""The order of samples: permutations, epochs, mixing, batches. Pure arithmetic, no I/O."""

from __future__ import annotations

from .batches import Batches, batches_per_task, rand_skip_of
from .chunk_order import ChunkOrder
from .drawn_order import MOST_SAMPLES, DrawnOrder, draws_of, samples_in
from .epoch_order import (
    BLOCK,
    SORTED_LIMIT,
    EpochOrder,
    Permutation,
    SequentialOrder,
    ShuffledOrder,
    keyed_permutation,
    numbered_keys,
    shuffled_rows,
)
from .given_batches import GivenBatches
from .global_generators import OwnGlobals, SampleSeeds, Seed, globals_kept, seed_generators
from .mixed_order import MixedOrder, draws_per_pattern, even_pattern
from .ordering import Shuffle, make_order
from .rounds import Order, Rounds, Schedule, between, by_batch
from .sample_rng import SampleRng, replacement_among, replacement_index
from .samplers import (
    AboutSampler,
    BalancedSampler,
    DrawnEpoch,
    HookSampler,
    IterableSampler,
    Sampler,
    SubsetSampler,
    WeightedSampler,
    Weights,
    check_range,
    check_weights,
    draw_epoch,
    no_weights,
    sampler_rng,
    samplers_in,
)
from .shard_rounds import EMPTY_EPOCH, FIX_STREAM, ShardRounds, Shards
