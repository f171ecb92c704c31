"""Converts weights and states between kinds of files."""

from __future__ import annotations

from pathlib import Path

from ..trainer.net import read_weights, write_weights
from ..trainer.prototxt import SnapshotError
from ..trainer.solving import is_caffe_state, read_state, write_state


def convert(source: Path, target: Path) -> str:
    """Write what `source` holds to `target`, in the format that its name asks for; returns what was done.

    Weights: a snapshot of blobfeed, .caffemodel, .caffemodel.h5 or a state_dict become .caffemodel, .caffemodel.h5 or
    a state_dict (.pt). States: .solverstate and .solverstate.h5 become each other. Raises SnapshotError.
    """
    if source.exists() and target.exists() and target.samefile(source):  # the weights would take a snapshot's place
        raise SnapshotError(f"{target} is the file to be converted: name another one, such as weights.pt")
    if is_caffe_state(source) or is_caffe_state(target):
        if not (is_caffe_state(source) and is_caffe_state(target)):
            raise SnapshotError(
                f"{source} cannot become {target}: a .solverstate can only be made of a .solverstate. A solver with "
                "snapshot_format writes one beside each snapshot"
            )
        state = read_state(source)
        write_state(target, state)
        return f"{target}: state after iteration {state.iteration}, with the weights in {state.learned_net}"
    if target.suffix not in (".caffemodel", ".h5", ".pt"):
        raise SnapshotError(f"{target}: expected a name that ends in .caffemodel, .caffemodel.h5 or .pt")
    weights = read_weights(source)
    write_weights(target, weights)
    return f"{target}: weights of {len(weights)} layers"
