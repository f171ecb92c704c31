"""A remote loader of which no cluster is needed to see what it does."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from blobfeed.cluster import RemoteLoader, actor, code_digest


def test_another_version_of_blobfeed_is_told_before_the_plan_is_looked_at() -> None:
    refusal = RemoteLoader().begin("another", b"no plan", {}, "", [], {"": logging.WARNING})
    assert refusal is not None
    assert "is another version of blobfeed than the trainer's host has" in refusal.text


def test_any_change_of_the_code_makes_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = code_digest(), tmp_path / "blobfeed"
    shutil.copytree(Path(actor.__file__).parents[1], here, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(actor, "__file__", str(here / "cluster" / "actor.py"))
    assert code_digest() == there
    with (here / "workers" / "order" / "batches.py").open("a") as file:
        file.write("\n")
    assert code_digest() != there
