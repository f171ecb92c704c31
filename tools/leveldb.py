"""Makes an LMDB of a LevelDB, in which older versions of Caffe kept their data."""

from __future__ import annotations

import os
import shutil
from itertools import islice
from pathlib import Path

from ..workers.base import ExtraMissing, ParameterError, SourceError, is_installed, need

_RECORDS_AT_ONCE = 1000
_LARGEST_BYTES = 1 << 40


def is_leveldb(path: Path) -> bool:
    """Return true if `path` is a folder with a LevelDB."""
    return (path / "CURRENT").is_file()


def convert_leveldb(source: Path, target: Path) -> str:
    """Write all records of the LevelDB `source` to a new LMDB `target`, whole or not at all; returns what was done.

    LevelDB locks `source` meanwhile, and may put its own files in order. Raises ParameterError if there is a `target`
    already, SourceError for records that cannot be read or do not fit, ExtraMissing.
    """
    need("lmdb", "converting a LevelDB")
    if not is_installed("plyvel"):
        raise ExtraMissing("converting a LevelDB needs plyvel, which is not installed: pip install plyvel")
    import lmdb
    import plyvel

    if os.path.lexists(target):
        raise ParameterError(f"{target} is there already: name a folder that is not, such as train_lmdb")
    temporary = target.with_name(f".{target.name}.{os.urandom(8).hex()}")
    count = 0
    try:
        with (
            plyvel.DB(str(source), paranoid_checks=True) as old,
            old.iterator(verify_checksums=True) as records,
            lmdb.open(str(temporary), map_size=_LARGEST_BYTES, lock=False) as new,
        ):
            while part := list(islice(records, _RECORDS_AT_ONCE)):
                with new.begin(write=True) as transaction:
                    for key, value in part:
                        transaction.put(key, value, append=True)
                count += len(part)
        temporary.rename(target)
    except (plyvel.Error, lmdb.Error, OSError) as error:
        raise SourceError(f"{source} cannot be converted to {target}, after {count} records: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return f"{target}: an LMDB of {count} records"
