"""What training would be with loaders that take no time: the same iterations with and without them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..trainer.layer_types.layer import DataParameters, no_data_parameters
from ..trainer.prototxt.prototxt import Document
from ..trainer.prototxt.schema import SolverParameter
from ..trainer.solving.solver import Solver
from ..workers.base.errors import EndOfData, ParameterError

_KEPT = 8
"""Batches that the ideal run repeats."""

_WARM = 10
"""Iterations before the clock starts: loaders start, torch chooses its kernels, and the repeated batches come."""


@dataclass(frozen=True)
class Timing:
    """`seconds` for `iterations`, of which the trainer waited `stall_s`; `diagnoses`: by the layer's name."""

    iterations: int
    seconds: float
    stall_s: float
    diagnoses: Mapping[str, str]

    @property
    def per_iteration_s(self) -> float:
        return self.seconds / self.iterations

    def __str__(self) -> str:
        return (
            f"{self.iterations} iterations in {self.seconds:.2f} s, {1000 * self.per_iteration_s:.2f} ms each, "
            f"{min(1.0, self.stall_s / self.seconds):.1%} of it waiting for data"
        )


def compare(
    document: Document[SolverParameter], device: str | None, iterations: int, say: Callable[[str], object]
) -> tuple[Timing, Timing]:
    """Train twice from the start, and forget it: as it is, and with the first batches again and again.

    Raises ParameterError if the net has no layer that is fed by loaders, or if the data end before there is a result.
    """
    real = _timed(document, device, iterations, no_data_parameters)
    say(f"real:  {real}")
    ideal = _timed(document, device, iterations, lambda _: {"replay": _KEPT})
    say(f"ideal: {ideal}; the first {_KEPT} batches again and again")
    share = max(0.0, 1 - ideal.per_iteration_s / real.per_iteration_s)
    say(f"an input that takes no time would save {share:.1%} of the time")
    for name, sentence in real.diagnoses.items():
        say(f"data of layer {name!r}: {sentence}")
    return real, ideal


def _timed(
    document: Document[SolverParameter], device: str | None, iterations: int, parameters: DataParameters
) -> Timing:
    with Solver(document, device, parameters) as solver:
        done = _steps(solver, _WARM)
        if not solver.data_statistics():
            raise ParameterError(f"--ideal: no layer of {document.path}'s train net is fed by loaders")
        solver.loss()  # waits for the device
        begun, stalled = time.monotonic(), solver.stall_s()
        done = _steps(solver, iterations)
        solver.loss()
        seconds = time.monotonic() - begun
        if not done:
            raise ParameterError(
                f"--ideal: the data of {document.path} end within {_WARM} iterations: give them more epochs"
            )
        told = {name: getattr(counted, "diagnosis", "") for name, counted in solver.data_statistics().items()}
        return Timing(done, seconds, solver.stall_s() - stalled, {name: text for name, text in told.items() if text})


def _steps(solver: Solver, most: int) -> int:
    for done in range(most):
        try:
            solver.step()
        except EndOfData:
            return done
    return most
