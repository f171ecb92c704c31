"""Trainings under other frameworks, with a killed worker and a restart in the middle: docs/from_torch.md shows them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import forks
from tests.support.forks import Forks

_PROGRAMS = Path(forks.__file__).with_name("framework_programs.py")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    cache, temporary = (str(tmp_path_factory.mktemp(name)) for name in ("huggingface", "t"))
    given = {"HF_HOME": cache, "HF_HUB_OFFLINE": "1", "TMPDIR": temporary}  # frameworks leave files in the last
    with forks.forks_with("torch.utils.data", "torch.distributed", **given) as running:
        yield running


@pytest.mark.parametrize(
    "framework",
    ["accelerate", "datasets", "ignite", "lightning", "transformers", pytest.param("ray", marks=pytest.mark.slow)],
)
def test_a_restart_has_the_losses_of_an_undisturbed_run(framework: str, programs: Forks, tmp_path: Path) -> None:
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    for part in ("whole", "stop", "resume"):
        ended, printed, error = programs.run(tmp_path, _PROGRAMS, framework, part)
        assert ended == 0, printed + error
    losses = (tmp_path / "losses").read_text().split()
    assert losses[:24] == losses[24:]
    assert len(losses) == 48
    assert not (tmp_path / "kill").exists()
