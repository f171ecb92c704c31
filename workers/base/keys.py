"""Keys for everything that looks random: a pure function of the seed and of what the key is for.

A cryptographic hash, since its cost (about a microsecond, once per epoch) does not matter, and since keys of
neighbouring seeds or epochs then have nothing in common, which sums and products of seeds do not give.
"""

from __future__ import annotations

from .digests import blake2b


def derive_key(seed: int, purpose: str, *numbers: int, bits: int = 64) -> int:
    """A uniform number of `bits` bits (a multiple of 8, at most 512), the same on every machine.

    `seed`, `numbers`: integers of any size. Different purposes give unrelated keys for the same seed.
    """
    text = ":".join((purpose, str(seed), *map(str, numbers)))
    return int.from_bytes(blake2b(text.encode(), digest_size=bits // 8).digest(), "little")
