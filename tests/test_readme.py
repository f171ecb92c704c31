"""The front page: its blocks run as they are written, also in `make test`, which leaves out those of docs/."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from blobfeed.trainer.prototxt import NetParameter, read_prototxt

from blobfeed import LayerHarness, MultiProcessInputLayer

from .support.documents import BLOCKS, ROOT, Block, documents_files

__all__ = ["documents_files"]

_TEXT = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.page == "README.md"], ids=str)
def test_a_block_of_the_front_page_runs(documents_files: Path, block: Block) -> None:
    command = [sys.executable, "-P", str(block.write(documents_files))]
    run = subprocess.run(command, cwd=documents_files, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr


def test_its_layer_gives_a_batch(documents_files: Path) -> None:
    (block,) = re.findall(r"```protobuf\n(.*?)```", _TEXT, re.DOTALL)
    (documents_files / "net.prototxt").write_text(block)
    net: Any = read_prototxt(documents_files / "net.prototxt", NetParameter).message
    given = net.layer[0].python_param.param_str
    with LayerHarness(MultiProcessInputLayer, given, base_dir=documents_files) as harness:
        assert harness.forward()["data"].shape == (64, 3, 32, 32)


def test_it_is_read_in_five_minutes() -> None:
    assert len(_TEXT.split()) <= 900
    assert all(block.count("\n") <= 10 for block in re.findall(r"```(?:python|protobuf)\n(.*?)```", _TEXT, re.DOTALL))
