"""Which samples come: the seam to supplies, the cut into rounds, permutations and random numbers. Pure, no I/O."""

from __future__ import annotations

from .cut import At, Cut
from .global_generators import OwnGlobals, SampleSeeds, Seed, draws_noted, globals_kept, seed_generators
from .permutation import SORTED_LIMIT, Permutation, keyed_permutation, numbered_keys, shuffled_rows
from .rounds import Schedule, between, by_batch, part_of
from .sample_rng import SampleRng, replacements
from .supply import DrawnEpoch, Draws, DrawsFile, Placed, Rounds, Supply, raise_no_weights
