"""BLAKE2b without OpenSSL.

`hashlib` loads OpenSSL's libcrypto: 3.8 MB of memory in each process, for hashes that nobody here needs. (`secrets`
loads it too, by way of `hmac`; os.urandom gives the same bytes.) BLAKE2b is an extension module of Python's own.
"""

try:
    from _blake2 import blake2b
except ImportError:  # an interpreter whose BLAKE2b is OpenSSL's
    from hashlib import blake2b

__all__ = ["blake2b"]
