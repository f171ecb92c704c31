"""Keys for random number generators, and digests of texts. Equal seeds and purposes give equal keys.

A cryptographic hash makes the keys of neighbouring seeds or epochs unrelated; sums and products of seeds would not. Its
cost, about a microsecond per epoch, does not matter.
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
    """Return a uniform number of `bits` bits (a multiple of 8, at most 512), equal on every machine.

    `seed`, `numbers`: integers of any size. Different purposes give unrelated keys for the same seed.
    """
    text = ":".join((purpose, str(seed), *map(str, numbers)))
    return int.from_bytes(blake2b(text.encode(), digest_size=bits // 8).digest(), "little")


def text_digest(text: str) -> str:
    """Return the digest of `text` for names and keys of caches: 64 hexadecimal digits."""
    return blake2b(text.encode(), digest_size=32).hexdigest()
