"""Fixtures of the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pictures import encoded, noise, picture, write_list


@pytest.fixture
def two_photographs(tmp_path: Path) -> Path:
    return write_list(
        tmp_path, {"china.jpg": encoded(picture(96, 128)), "a flower.png": encoded(noise(50, 40), ".png")}
    )
