"""`blobfeed convert` of a LevelDB: the same records in an LMDB, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from blobfeed.tools import leveldb
from blobfeed.tools.leveldb import convert_leveldb
from typer.testing import CliRunner

from blobfeed import BatchReader, ExtraMissing, ParameterError, SourceError
from blobfeed.cli import app
from tests.support.datums import raw_datum

IMAGES = np.random.default_rng(0).integers(0, 256, (1200, 3, 25, 40), np.uint8)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Several tables and a log of 3.6 MB."""
    plyvel = pytest.importorskip("plyvel", reason="a LevelDB needs plyvel")
    with plyvel.DB(str(tmp_path / "old"), create_if_missing=True, write_buffer_size=1 << 16) as made:
        for number, image in enumerate(IMAGES):
            made.put(b"%08d" % number, raw_datum(image, number))
    return tmp_path / "old"


def test_every_record_comes_in_the_order_of_its_key(database: Path, tmp_path: Path) -> None:
    assert sum(each.suffix == ".ldb" for each in database.iterdir()) > 1
    done = CliRunner().invoke(app, ["convert", str(database), str(tmp_path / "new")])
    assert done.exit_code == 0
    assert done.output.endswith("new: an LMDB of 1200 records\n")
    with BatchReader({"lmdb": tmp_path / "new"}, batch_size=100, num_loaders=1, epochs=1) as reader:
        for nth, batch in enumerate(reader):
            np.testing.assert_array_equal(batch["data"], IMAGES[100 * nth : 100 * nth + 100])
            assert batch["label"].tolist() == list(range(100 * nth, 100 * nth + 100))
    assert {each.name for each in tmp_path.iterdir()} == {"old", "new"}


def test_what_lies_at_the_target_stays(database: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with pytest.raises(ParameterError, match="new"):
        convert_leveldb(database, tmp_path / "new")
    assert not list((tmp_path / "new").iterdir())


def test_damage_is_named_and_leaves_no_lmdb(database: Path, tmp_path: Path) -> None:
    table = min(database.glob("*.ldb"))
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 0xFF
    table.write_bytes(content)
    with pytest.raises(SourceError, match=r"old.*new.*\d+"):
        convert_leveldb(database, tmp_path / "new")
    assert {each.name for each in tmp_path.iterdir()} == {"old"}


def test_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leveldb, "is_installed", lambda library: library != "plyvel")
    with pytest.raises(ExtraMissing, match="plyvel"):
        convert_leveldb(tmp_path, tmp_path / "new")
