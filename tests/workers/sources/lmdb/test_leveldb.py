"""The source `leveldb`: the same records as from an LMDB, by any number of processes, and nothing written or left."""

from __future__ import annotations

import fcntl
import gc
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from blobfeed.workers.base.errors import ParameterError, SampleError, SourceError
from blobfeed.workers.base.source import Source
from blobfeed.workers.base.specs import allocate_rows
from blobfeed.workers.sources import open_source

from blobfeed import BatchReader
from tests.support.datums import encoded_datum, raw_datum, write_leveldb, write_lmdb
from tests.support.pictures import encoded, noise

IMAGES = np.random.default_rng(0).integers(0, 256, (200, 3, 25, 40), np.uint8)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 kB: several tables and a log."""
    return write_leveldb(tmp_path_factory.mktemp("level") / "db", map(raw_datum, IMAGES, range(200)))


def opened(path: Path) -> Source:
    return open_source({"leveldb": {"path": str(path)}}, tops=None, base_dir=path.parent)


def rooms() -> set[str]:
    return {each.name for each in Path(tempfile.gettempdir()).glob("blobfeed-leveldb-*")}


def test_records_are_read_in_any_order_and_the_database_is_left_as_it_is(database: Path) -> None:
    before = {each.name: each.stat().st_mtime_ns for each in database.iterdir()}
    assert sum(name.endswith(".ldb") for name in before) > 1
    source = opened(database)
    loaded = pickle.loads(pickle.dumps(source))
    for each in (source, loaded):
        rows = allocate_rows(each.specs, 3)
        each.read(np.array([199, 0, 57]), rows)
        np.testing.assert_array_equal(rows["data"], IMAGES[[199, 0, 57]])
        assert np.asarray(rows["label"]).tolist() == [199, 0, 57]
    assert len(source) == 200
    assert {each.name: each.stat().st_mtime_ns for each in database.iterdir()} == before


def test_a_copy_in_the_same_process_outlives_the_source(database: Path) -> None:
    before = rooms()
    source = opened(database)
    copy = pickle.loads(pickle.dumps(source))
    del source
    gc.collect()
    rows = allocate_rows(copy.specs, 1)
    copy.read(np.array([57]), rows)
    np.testing.assert_array_equal(rows["data"], IMAGES[[57]])
    del copy
    gc.collect()
    assert rooms() <= before


def test_two_loaders_read_it_and_nothing_is_left(database: Path) -> None:
    before = rooms()
    with BatchReader({"leveldb": database}, batch_size=50, num_loaders=2, epochs=1) as reader:
        labels = [label for batch in reader for label in batch["label"].tolist()]
    assert labels == list(range(200))
    del reader
    gc.collect()
    assert rooms() <= before


def test_what_a_killed_trainer_left_goes_with_the_next_one(database: Path) -> None:
    before = rooms()
    script = "import os, sys\nfrom blobfeed.workers.sources import open_source\nfrom pathlib import Path\n"
    script += "kept = open_source({'leveldb': sys.argv[1]}, tops=None, base_dir=Path())\nos._exit(0)"
    subprocess.run([sys.executable, "-c", script, str(database)], check=True)
    assert rooms() - before
    opened(database)
    gc.collect()
    assert not rooms() - before


def test_a_trainer_that_lives_in_another_container_keeps_its_folder(database: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    theirs = Path(tempfile.mkdtemp(prefix=f"blobfeed-leveldb-{ended.pid}-"))
    with (theirs / "in use").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        opened(database)
        assert theirs.exists()
    opened(database)
    assert not theirs.exists()
    gc.collect()


def test_what_another_rank_has_just_removed_is_passed_over(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "glob", lambda *_: [Path(tempfile.gettempdir(), "blobfeed-leveldb-999999999-gone")])
    assert len(opened(database)) == 200


def test_encoded_pictures_are_those_of_an_lmdb(tmp_path: Path) -> None:
    records = [encoded_datum(encoded(noise(9, 8, nth), ".png"), nth) for nth in range(4)]
    level, plain = write_leveldb(tmp_path / "level", records), write_lmdb(tmp_path / "lmdb", records)
    found = []
    for source in (opened(level), open_source({"lmdb": str(plain)}, tops=None, base_dir=tmp_path)):
        rows = allocate_rows(source.specs, 4)
        source.read(np.arange(4), rows)
        found.append(np.asarray(rows["data"]))
        source.close()
    np.testing.assert_array_equal(found[0], found[1])


def test_mistakes_are_named(tmp_path: Path, database: Path) -> None:
    with pytest.raises(ParameterError, match="there is no database"):
        opened(tmp_path)
    with pytest.raises(ParameterError, match=r"an LMDB: source: {lmdb: …}, or backend: LMDB, reads it"):
        opened(write_lmdb(tmp_path / "lmdb", [raw_datum(IMAGES[0])]))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "CURRENT").write_text("nonsense")
    with pytest.raises(SourceError, match="cannot be opened"):
        opened(tmp_path / "broken")
    with pytest.raises(SampleError, match=r"source leveldb: .*bad key '00000000'"):
        opened(write_leveldb(tmp_path / "bad", [b"broken"]))
    changed = write_leveldb(tmp_path / "changed", [raw_datum(IMAGES[0])])
    source = opened(changed)
    source.close()
    write_leveldb(changed, [raw_datum(IMAGES[1])] * 2)
    with pytest.raises(SourceError, match="has changed since"):
        source.read(np.array([0]), allocate_rows(source.specs, 1))
