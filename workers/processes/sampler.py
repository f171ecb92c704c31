"""The process that runs the sampler: receives requests for epochs, writes their draws to shared memory, answers.

    assembler → sampler   Draw(request, epoch)           over a socket pair that is made before the nursery is forked
    sampler → assembler   Drawn(request, indices)  or  DrawFailed(request, why)

It is forked from the nursery, and replaced after its death, like a loader: an epoch is drawn again from the seed. So
user code that is slow, crashes or hangs blocks no other process. It works one epoch ahead.
"""

from __future__ import annotations

import os
import socket
import time
from functools import partial

import numpy as np

from ..base.errors import SourceError
from ..base.hooks import exceptions_only
from ..order.draws import draws_of
from ..order.samplers import Sampler, Weights, draw_epoch
from ..plan.sampled_plan import SampledPlan
from ..transport.error_channel import SendError, describe, send_exception, sendable, summary_of
from ..transport.links import Opener, Sealer
from ..transport.messages import Draw, DrawFailed, Drawn, FromSampler
from ..transport.shared_file import SharedFile
from ..transport.status_board import Activity
from .config import Config

FRAME_BYTES = 1 << 18
"""The largest frame: DrawFailed with a traceback of 32,768 characters, of up to four bytes each."""

_MOST_CHARACTERS = 2000


def run_sampler(config: Config, errors: socket.socket, number: int, line: int, link: socket.socket) -> None:
    """Run the sampler's process, on `line` of the status board."""
    os.environ["BLOBFEED_ROLE"] = "sampler"
    assert isinstance(config.plan, SampledPlan)
    status = config.status(line)
    status.begin(number, os.getpid())
    drawn, weights = SharedFile(config.descriptors.drawn), SharedFile(config.descriptors.weights)
    runner = SamplerRunner(config.plan, drawn, weights, partial(send_exception, errors))
    sealer, opener = Sealer(config.key), Opener[Draw](config.key, Draw)
    if (trace := config.trace()) is not None:
        trace.name("sampler", 4)
    status.write(Activity.WAITING)
    while frame := link.recv(FRAME_BYTES):
        request = opener.open(frame)
        if request is None:
            continue
        status.write(Activity.SAMPLING, request.epoch)
        begun = time.monotonic_ns()
        answer = runner.answer(request)
        if trace is not None:
            trace.write(trace.span("loader", "sample", begun, time.monotonic_ns(), epoch=request.epoch))
        link.send(sealer.seal(answer))
        status.write(Activity.WAITING)


class SamplerRunner:
    """Draws epochs into the file `drawn`, by the weights in the file `weights`, if the user has set some."""

    def __init__(self, plan: SampledPlan, drawn: SharedFile, weights: SharedFile, send_error: SendError) -> None:
        self._plan = plan
        self._send_error = send_error
        self._drawn = drawn
        self._weights = weights
        self._sampler: Sampler | None = None

    def answer(self, request: Draw) -> FromSampler:
        """Draw the requested epoch; an exception of the sampler becomes a DrawFailed."""
        try:
            with exceptions_only():
                return self._draw(request)
        except SourceError as error:
            return DrawFailed(request.request, sendable(str(error), _MOST_CHARACTERS))
        except Exception as error:
            text = f"{self._plan.about.name}, epoch {request.epoch}: it raised {summary_of(error)}"
            return DrawFailed(request.request, text, self._send_error(error), describe(error))

    def _draw(self, request: Draw) -> Drawn:
        plan, weights = self._plan, self._weights_of(request.weights)
        self._sampler = self._sampler or plan.sampler.value
        epoch = draw_epoch(
            self._sampler,
            request.epoch,
            seed=plan.parameters.seed,
            samples=plan.source_samples,
            batch_size=plan.parameters.batch_size,
            weights=weights,
        )
        end = self._drawn.write(request.offset, draws_of(epoch.indices))
        if epoch.sizes is not None:
            self._drawn.write(end, epoch.sizes)
        return Drawn(request.request, len(epoch.indices), 0 if epoch.sizes is None else len(epoch.sizes))

    def _weights_of(self, version: int) -> Weights | None:
        if version == 0:
            return None
        if version in self._plan.log.weights:
            return self._plan.log.weights[version]
        samples = self._plan.source_samples
        weights = self._weights.read(8 * samples * version, samples, np.float64)
        if not weights.any():  # freed since the request, so newer weights apply, and the answer will be ignored
            raise SourceError(f"{self._plan.about.name}: the weights of version {version} count no more")
        return weights
