"""Keys, from which all random numbers are made, and digests of texts. Equal seeds and purposes give equal keys.

A cryptographic hash, since its cost (about a microsecond, once per epoch) does not matter, and since keys of
neighbouring seeds or epochs then have nothing in common, which sums and products of seeds do not give.
"""

from __future__ import annotations

try:
    # `hashlib` loads OpenSSL's libcrypto, 3.8 MB of memory in each process, and `secrets` loads it too, by way of
    # `hmac`. BLAKE2b is an extension module of Python's own, and os.urandom gives the same bytes as `secrets`.
    from _blake2 import blake2b
except ImportError:  # an interpreter that has the module under another name
    from hashlib import blake2b

__all__ = ["blake2b", "derive_key", "text_digest"]


def derive_key(seed: int, purpose: str, *numbers: int, bits: int = 64) -> int:
    """A uniform number of `bits` bits (a multiple of 8, at most 512), the same on every machine.

    `seed`, `numbers`: integers of any size. Different purposes give unrelated keys for the same seed.
    """
    text = ":".join((purpose, str(seed), *map(str, numbers)))
    return int.from_bytes(blake2b(text.encode(), digest_size=bits // 8).digest(), "little")


def text_digest(text: str) -> str:
    """What stands for `text` in the names and keys of caches: 64 hexadecimal digits."""
    return blake2b(text.encode(), digest_size=32).hexdigest()
