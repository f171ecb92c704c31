"""A pipeline that can be begun anew at another position, and knows what its reader has really received."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from ..workers.batch_plan import BatchPlan
from ..workers.errors import ParameterError
from ..workers.parameters import Parameters, check_parameters
from ..workers.pipeline import Pipeline
from ..workers.recipe import Hooks
from ..workers.resume import State
from ..workers.sources import Source, open_source
from .sharding import with_shard

_Hook = TypeVar("_Hook")

SourceLike = Source | Mapping[str, object] | None


class SeekablePipeline:
    """Batches without end, from any position on: take them from `pipeline`, and add to `received` what the user got.

    `epochs` is left to the reader: the pipeline itself goes on into the next epoch, so that the first batch of the next
    loop lies ready when it is asked for.
    """

    def __init__(
        self,
        what: str,
        source: SourceLike,
        hooks: Hooks,
        values: Mapping[str, object],
        *,
        base_dir: Path | str | None = None,
        train: bool = True,
    ) -> None:
        """`what` begins the messages about wrong parameters. Raises what Pipeline raises."""
        self.base_dir = Path(base_dir) if base_dir is not None else Path.cwd()
        self._train = train
        check_hook(what, "decode", hooks.decode)
        check_hook(what, "postprocess", hooks.postprocess)
        self._hooks = hooks
        self.parameters = _check(what, source, values)
        self._source = source if isinstance(source, Source) else self._open_source()
        self._use(self._open())

    @property
    def position(self) -> int:
        """The global position where the first batch begins that has not been received yet."""
        return self._plan.round_start(self.received)

    def ends_epoch(self, ahead: int) -> bool:
        """Whether an epoch ends with, or within, the batch that is received as the `ahead`th from now (1: the next)."""
        return self._plan.ends_epoch(self.received + ahead - 1)

    def state_dict(self) -> State:
        """Where the next batch stands that has not been received."""
        numbers = {"position": self.position, "batches": self._first_number + self.received}
        return {**self.pipeline.state_dict(), **numbers}

    def opened_at(self, state: Mapping[str, object]) -> Pipeline:
        """A pipeline that goes on where `state` was saved, not yet in use; raises ParameterError where it cannot."""
        pipeline = self._open()
        try:
            pipeline.load_state_dict(state)
        except BaseException:
            pipeline.close()
            raise
        return pipeline

    def switch_to(self, pipeline: Pipeline) -> None:
        """Read from `pipeline` from now on; what the one before it has prefetched is thrown away."""
        self.pipeline.close()
        self._use(pipeline)

    def close(self) -> None:
        self.pipeline.close()

    def _use(self, pipeline: Pipeline) -> None:
        state = pipeline.state_dict()
        self._plan = BatchPlan(
            pipeline.samples,
            self.parameters.batch_size,
            self.parameters.last_batch,
            None,
            self.parameters.rank or 0,
            self.parameters.world_size or 1,
            int(state["position"]),
        )
        self._first_number = int(state["batches"])
        self.received = 0
        self.pipeline = pipeline

    def _open(self) -> Pipeline:
        endless = msgspec.structs.replace(self.parameters, epochs=None)
        return Pipeline(endless, self._hooks, base_dir=self.base_dir, train=self._train, source=self._source)

    def _open_source(self) -> Source | None:
        """Opened once and kept: examining a million files again at each jump would take seconds."""
        if self.parameters.source is None:
            return None
        return open_source(self.parameters.source, tops=self.parameters.tops, base_dir=self.base_dir)


def _check(what: str, source: SourceLike, values: Mapping[str, object]) -> Parameters:
    declared: dict[str, object] = dict(values)
    if isinstance(source, Source):
        declared["source"] = {source.kind: {}}
    elif source is not None:
        declared["source"] = source
    return with_shard(check_parameters(declared, what))


def check_hook(what: str, name: str, hook: _Hook | None) -> _Hook | None:
    """`hook` where it can be called, or None; raises ParameterError."""
    if hook is not None and not callable(hook):
        raise ParameterError(f"{what}: parameter {name!r} is {hook!r}: expected a function or another callable")
    return hook
