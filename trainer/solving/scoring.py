"""Testing a trained net by itself."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ..net.graph import Generators, Net
from ..prototxt.errors import PrototxtError
from ..prototxt.phases import State
from ..prototxt.prototxt import read_prototxt
from ..prototxt.schema import NetParameter, Phase
from . import snapshot as snapshots
from .solver import Scores, mean_outputs
from .solver_file import choose_device


def score_net(model: Path, weights: Path, iterations: int, device: str | None = None) -> Scores:
    """The means of the outputs of the net of prototxt `model` in phase TEST, with the weights of a snapshot."""
    document = read_prototxt(model, NetParameter)
    where = choose_device(device)
    state = State(Phase.TEST).merged(document.message.state)
    snapshot = snapshots.load(weights)
    with contextlib.closing(Net(document, state, where, Generators.seeded(0, where))) as net:
        net.load_weights(snapshot.weights, str(weights))
        scores = mean_outputs(net, iterations)
        if not scores:
            raise PrototxtError(f"{model}: in phase TEST the net has no output of one number, such as an accuracy")
        return scores
