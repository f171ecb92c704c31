"""What a pipeline needs to know of its plan, whether the source is indexed or a stream."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol, Self

from ..base.errors import ParameterError
from ..base.hooks import Hooks
from ..base.parameters import Parameters
from ..base.specs import ArraySpec, Rows
from ..loading.worker import WorkerSettings
from ..processes.supply import IndexedSupply, StreamSupply
from ..transport.messages import Announce
from ..transport.ring import SlotLayout
from .batch import Batch

State = dict[str, int | str]

_FEWEST_SLOTS = 3
"""One that the trainer reads, one that lies ready, one that is being filled."""


class AnySource(Protocol):
    """What indexed sources and streams have in common."""

    @property
    def kind(self) -> str: ...

    @property
    def modules(self) -> tuple[str, ...]: ...

    def where(self, index: int) -> str: ...

    def close(self) -> None: ...


class AnyRecipe(Protocol):
    """What loaders run; sent to them by cloudpickle."""

    @property
    def hooks(self) -> Hooks: ...

    @property
    def source(self) -> AnySource: ...

    @property
    def specs(self) -> Mapping[str, ArraySpec]: ...

    @property
    def slot_specs(self) -> Mapping[str, ArraySpec]: ...


class Progress(Protocol):
    """How far the trainer has come. It never changes: the next one takes its place, in one step."""

    @property
    def taken(self) -> int:
        """Batches since the plan begins."""

    def after(self, batch: Batch) -> Progress:
        """The progress when the trainer has received `batch` too."""

    def state(self) -> State:
        """Plain values from which `RunPlan.resumed` goes on."""


class RunPlan(ABC):
    """What does not change while the pipeline runs."""

    parameters: Parameters
    first_number: int
    """Batches that were taken before this plan begins."""
    seconds_per_row: float

    recipe: AnyRecipe

    @property
    @abstractmethod
    def batches_per_unit(self) -> int: ...

    @property
    @abstractmethod
    def samples(self) -> int:
        """Samples in an epoch, over all ranks; raises SourceError for a stream, which does not know."""

    @property
    @abstractmethod
    def batches_per_epoch(self) -> int | None: ...

    @property
    @abstractmethod
    def total_batches(self) -> int | None: ...

    @abstractmethod
    def supply(self) -> IndexedSupply | StreamSupply:
        """What the assembler goes by."""

    @abstractmethod
    def unpack(self, announce: Announce, rows: Mapping[str, Rows]) -> list[Batch]:
        """The batches of an announced unit, as views on its slot's rows."""

    @abstractmethod
    def begin(self) -> Progress: ...

    @abstractmethod
    def resumed(self, state: Mapping[str, object]) -> Self:
        """The same, going on from `state`; raises ParameterError where that is not possible."""

    @property
    def layout(self) -> SlotLayout:
        return SlotLayout(self.recipe.slot_specs, self.batches_per_unit * self.parameters.batch_size)

    @property
    def slots(self) -> int:
        """Slots in the ring: those to prefetch, and the one that the trainer holds."""
        prefetched = -(-self.parameters.prefetch_batches // self.batches_per_unit)
        return max(_FEWEST_SLOTS, prefetched + 1)

    @property
    def max_loaders(self) -> int:
        wanted = self.parameters.num_loaders
        return usable_cores() if wanted == "auto" else wanted

    @property
    def worker_settings(self) -> WorkerSettings:
        given = self.parameters
        return WorkerSettings(
            given.batch_size, given.last_batch, given.epochs, given.seed, replace=given.on_error == "replace"
        )


def usable_cores() -> int:
    """Cores that this process may use: its affinity mask counts, not what the machine has."""
    return len(os.sched_getaffinity(0))


def check_state(state: Mapping[str, object], ours: State, fixed: tuple[str, ...]) -> State:
    """`state` where it has the names and types of `ours`, and the same values for `fixed`; raises ParameterError."""
    if set(state) != set(ours) or state["version"] != ours["version"]:
        raise ParameterError(
            f"this is no state of such a pipeline: {dict(state)!r}; expected the names {', '.join(ours)} "
            f"and version {ours['version']}"
        )
    checked: State = {}
    for name, value in state.items():
        if not isinstance(value, int | str) or type(value) is not type(ours[name]) or str(value).startswith("-"):
            raise ParameterError(f"the state's {name} is {value!r}: expected a value such as {ours[name]!r}")
        checked[name] = value
    for name in fixed:
        if checked[name] != ours[name]:
            raise ParameterError(
                f"the state was saved with {name}={checked[name]!r}, this pipeline has {name}={ours[name]!r}: "
                "the same batches cannot follow; use the same source and order, or start without the state"
            )
    return checked
