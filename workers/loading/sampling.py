"""The sampler of a run, packed for the loader that draws, with what the other processes know of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..base.errors import ParameterError
from ..base.parameters import Parameters
from ..order.draws import MOST_SAMPLES
from ..order.samplers import AboutSampler, DrawnEpoch, Sampler, Weights, draw_epoch
from ..order.weights_log import WeightsLog
from ..transport.packed import Packed


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """A sampler that draws from `samples` samples. `log`: the weights that were set.

    `most_in_slot`: the batches per slot if they took no time. The first epoch of new weights is computed from it, since
    it must not depend on measured times.
    """

    sampler: Packed[Sampler]
    about: AboutSampler
    samples: int
    most_in_slot: int = 1
    log: WeightsLog = field(default_factory=WeightsLog)

    @classmethod
    def by(cls, sampler: Sampler, samples: int) -> Sampling:
        """Pack the sampler; raises ParameterError for more samples than it can number."""
        if samples > MOST_SAMPLES:
            raise ParameterError(
                f"{sampler.about.name} chooses among at most 2**48 samples, and the source has {samples}"
            )
        # Only the loader that draws imports its modules: often that is torch, which the others do not need.
        packed = Packed(sampler, parts={sampler.about.name: sampler})
        return cls(sampler=packed, about=sampler.about, samples=samples)

    def draw(self, epoch: int, parameters: Parameters, weights: Weights | None = None) -> DrawnEpoch:
        """Return the samples of `epoch`; raises what draw_epoch does, and what unpickling the sampler does."""
        size = parameters.batch_size
        return draw_epoch(
            self.sampler.value, epoch, seed=parameters.seed, samples=self.samples, batch_size=size, weights=weights
        )
