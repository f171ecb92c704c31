"""`blobfeed which`: the samples of batches, from the parameters of a run and a state that it has saved."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from ..layers.param_str import parse_param_str
from ..readers.keywords import check_reader_parameters
from ..readers.opening import Place, locate, make_plan
from ..workers.api import Hooks
from ..workers.base import ParameterError
from ..workers.plan import Plan


def batches_of(given: str, state: Path | None, batches: str) -> dict[int, list[Place]]:
    """Return the places of the samples of `batches`, such as "10..12", of the run that `given` and `state` describe.

    `given`: a net prototxt, or a reader's parameters as YAML. `state`: a `state_dict` as JSON; None for a run
    from the beginning. `batches`: "" for the last one before the state. Raises ParameterError.
    """
    if given.endswith(".prototxt"):
        with plan_of_net(Path(given)) as (plan, _):
            return _located(plan, state, batches)
    declared = check_reader_parameters("parameters", None, parse_param_str(given, "parameters"))
    # A reader's loops follow each other, and its batches are counted over all of them.
    parameters = msgspec.structs.replace(declared, epochs=None)
    plan = make_plan(parameters, Hooks(), Path.cwd(), True, None)
    with closing(plan.source):
        return _located(plan, state, batches)


def _located(plan: Plan, state: Path | None, batches: str) -> dict[int, list[Place]]:
    if state is not None:
        plan = plan.resumed(_read(state))
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", batches or str(max(0, plan.first_number - 1)))
    if found is None:
        raise ParameterError(f"--batches is {batches!r}: expected a number, or two as in 10..12")
    first, last = int(found[1]), int(found[2] or found[1])
    if first > last:
        raise ParameterError(f"--batches is {batches!r}: expected the smaller number first, as in {last}..{first}")
    return locate([plan], range(first, last + 1))


def _read(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text().splitlines()[0])
    except (OSError, ValueError, IndexError) as error:
        raise ParameterError(
            f"--state {path}: it cannot be read: {error}; expected state_dict() as JSON, on one line"
        ) from error
    if not isinstance(found, dict):
        raise ParameterError(f"--state {path}: it holds no state; expected state_dict() as JSON, on one line")
    return found


@contextmanager
def plan_of_net(model: Path) -> Iterator[tuple[Plan, Path]]:
    """The plan of the first layer in a net that blobfeed feeds, in phase TRAIN, and the folder of its files."""
    import torch

    from ..layers.multi_process_input_layer import MultiProcessInputLayer
    from ..trainer import Net
    from ..trainer.layer_types import Generators

    # The seed of the data is 0, as in training without a random_seed.
    with closing(Net(model, "TRAIN", generators=Generators.seeded(0, torch.device("cpu")))) as net:
        ours = [layer for layer in net.user_layers().values() if isinstance(layer, MultiProcessInputLayer)]
        if not ours:
            raise ParameterError(f"{model} has no layer in phase TRAIN that blobfeed feeds: name the data instead")
        yield ours[0].plan, Path(ours[0].base_dir or Path.cwd())
