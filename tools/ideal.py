"""What training would be with loaders that take no time: the same iterations with and without them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ..trainer.layer_types.layer import DataParameters, no_data_parameters
from ..trainer.prototxt.prototxt import Document
from ..trainer.prototxt.schema import SolverParameter
from ..trainer.solving.solver import Solver
from ..workers.base.errors import EndOfData, ParameterError

_KEPT = 8
"""Batches that the ideal run repeats."""

_WARM = 10
"""Iterations before the clock starts: loaders start, torch chooses its kernels, and the repeated batches come."""


def compare(
    document: Document[SolverParameter], device: str | None, iterations: int, say: Callable[[str], object]
) -> None:
    """Train twice from the start, and forget it: as it is, and with the first batches again and again.

    Raises ParameterError if the net has no layer that is fed by loaders, or if the data end before there is a result.
    """
    real_s, told, diagnoses = _timed(document, device, iterations, no_data_parameters)
    say(f"real:  {told}")
    ideal_s, told, _ = _timed(document, device, iterations, lambda _: {"replay": _KEPT, "trace": ""})
    say(f"ideal: {told}; the first {_KEPT} batches again and again")
    say(f"an input that takes no time would save {max(0.0, 1 - ideal_s / real_s):.1%} of the time")
    for name, sentence in diagnoses.items():
        say(f"data of layer {name!r}: {sentence}")


def _timed(
    document: Document[SolverParameter], device: str | None, iterations: int, parameters: DataParameters
) -> tuple[float, str, Mapping[str, str]]:
    """Seconds of an iteration, what to say of them, and the diagnosis of each layer's data."""
    with Solver(document, device, parameters) as solver:
        _steps(solver, _WARM)
        if not solver.data_statistics():
            raise ParameterError(f"--ideal: no layer of {document.path}'s train net is fed by loaders")
        solver.loss()  # waits for the device
        begun, stalled_s = time.monotonic(), solver.stall_s()
        done = _steps(solver, iterations)
        solver.loss()
        seconds, stalled_s = time.monotonic() - begun, solver.stall_s() - stalled_s
        if not done:
            raise ParameterError(
                f"--ideal: the data of {document.path} end within {_WARM} iterations: give them more epochs"
            )
        each_s, share = seconds / done, min(1.0, stalled_s / seconds)
        told = f"{done} iterations in {seconds:.2f} s, {1000 * each_s:.2f} ms each, {share:.1%} of it waiting for data"
        diagnoses = {name: getattr(counted, "diagnosis", "") for name, counted in solver.data_statistics().items()}
        return each_s, told, {name: sentence for name, sentence in diagnoses.items() if sentence}


def _steps(solver: Solver, most: int) -> int:
    for done in range(most):
        try:
            solver.step()
        except EndOfData:
            return done
    return most
