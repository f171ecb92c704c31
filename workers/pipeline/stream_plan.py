"""The plan of a pipeline whose source is a stream: its batches are known when they come, not before."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..base.errors import ParameterError, SourceError
from ..base.hooks import Hooks
from ..base.parameters import Parameters
from ..base.specs import Rows
from ..loading.stream_recipe import StreamRecipe
from ..loading.transform import CropMirror
from ..order.shard_turns import Draw, StreamPosition
from ..processes.supply import StreamSupply
from ..sources.stream import StreamSource
from ..transport.messages import Announce
from .batch import Batch
from .plan import RunPlan, State, check_state, usable_cores

_VERSION = 1


@dataclass(frozen=True, slots=True)
class StreamPlan(RunPlan):
    """`shards`: of this rank; each belongs to one loader at a time."""

    parameters: Parameters
    recipe: StreamRecipe
    shards: int
    position: StreamPosition
    first_number: int = 0
    seconds_per_row: float = 0.0

    @property
    def batches_per_unit(self) -> int:
        return 1

    @property
    def samples(self) -> int:
        raise SourceError("a stream does not know how many samples it has: read it until its end")

    @property
    def batches_per_epoch(self) -> None:
        return None

    @property
    def total_batches(self) -> None:
        return None

    def supply(self) -> StreamSupply:
        given = self.parameters
        rank_offset = (given.rank or 0) * self.shards
        return StreamSupply.begin(
            copy.deepcopy(self.position), given.batch_size, given.last_batch, given.epochs, rank_offset
        )

    def unpack(self, announce: Announce, rows: Mapping[str, Rows]) -> list[Batch]:
        stream = announce.stream
        if stream is None:
            raise TypeError(f"unit {announce.unit} of a stream was announced without saying which batch it is")
        tops = {name: top[: stream.rows] for name, top in rows.items()}
        position = stream.sequence * self.parameters.batch_size
        number = self.first_number + announce.unit
        return [Batch(number, stream.epoch, position, stream.rows, tops, announce.unit, None, {}, stream.shard)]

    def begin(self) -> StreamProgress:
        return StreamProgress(self, self.position)

    def resumed(self, state: Mapping[str, object]) -> StreamPlan:
        ours = self.begin().state()
        checked = check_state(state, ours, ("seed", "batch_size", "shards", "last_batch"))
        try:
            sequences = [int(number) for number in json.loads(str(checked["sequences"]))]
        except (ValueError, TypeError):
            sequences = []
        if len(sequences) != self.shards:
            raise ParameterError(f"the state's sequences are {checked['sequences']!r}: expected {self.shards} numbers")
        position = StreamPosition(int(checked["epoch"]), sequences, int(checked["turn"]) % self.shards)
        return replace(self, position=position, first_number=int(checked["batches"]))


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """Counts what has been taken from each shard."""

    plan: StreamPlan
    position: StreamPosition
    taken: int = 0

    def after(self, batch: Batch) -> StreamProgress:
        position = copy.deepcopy(self.position)
        position.take(Draw(batch.epoch, batch.shard, batch.position // self.plan.parameters.batch_size))
        return StreamProgress(self.plan, position, self.taken + 1)

    def state(self) -> State:
        return {
            "version": _VERSION,
            "batches": self.plan.first_number + self.taken,
            "epoch": self.position.epoch,
            "sequences": json.dumps(self.position.sequences),
            "turn": self.position.turn,
            "seed": self.plan.parameters.seed,
            "batch_size": self.plan.parameters.batch_size,
            "shards": self.plan.shards,
            "last_batch": self.plan.parameters.last_batch,
        }


def make_stream_plan(
    parameters: Parameters, hooks: Hooks, source: StreamSource, transform: CropMirror | None
) -> StreamPlan:
    """Check that a stream can have what was asked for, and learn its specs; raises ParameterError."""
    for name, value, why in (
        ("shuffle", parameters.shuffle, "use the stream's capacity and min_after_dequeue"),
        ("rand_skip", parameters.rand_skip, "skip in the function that makes the stream"),
        ("cache", parameters.cache, "only indexed sources have one"),
    ):
        if value:
            raise ParameterError(f"parameter {name!r} is {value!r}, which a stream cannot have: {why}")
    if not parameters.in_order:
        raise ParameterError("parameter 'in_order' is false: the shards of a stream take turns, in order")
    loaders = parameters.num_loaders
    shards = source.shards or (usable_cores() if loaders == "auto" else loaders)
    recipe = StreamRecipe(
        source,
        hooks,
        num_shards=shards * (parameters.world_size or 1),
        tops=parameters.tops,
        seed=parameters.seed,
        transform=transform,
        max_shapes=parameters.max_shapes,
    )
    return StreamPlan(parameters, recipe, shards, StreamPosition.start(shards))
