"""The shard of this process: from the parameters, or from the trainer's own settings."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ..workers.api import Parameters
from ..workers.base import ParameterError

_log = logging.getLogger("blobfeed")


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `rank` of `world_size` parts; `origin` names its source, for messages and logs."""

    rank: int
    world_size: int
    origin: str

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ParameterError(
                f"the shard by {self.origin} is rank {self.rank} of world size {self.world_size}: "
                "expected 0 <= rank < world size; give 'rank' and 'world_size' as parameters to overrule it"
            )


WHOLE = Shard(0, 1, "default: one process reads everything")


def find_shard(rank: int | None = None, world_size: int | None = None) -> Shard:
    """Return the shard of this process: from the arguments, else from its trainer's settings.

    Asked in turn: the arguments; `torch.distributed`, if a process group has been initialised; Ray Train's context, in
    a function that Ray Train runs; the environment's RANK and WORLD_SIZE, which torchrun sets; `caffe.solver_rank()`
    and `caffe.solver_count()`, if Caffe has been imported. None of them is imported here. Raises ParameterError.
    """
    return (
        _from_arguments(rank, world_size)
        or _from_torch_distributed()
        or _from_ray_train()
        or shard_in_environment(os.environ)
        or _from_caffe()
        or WHOLE
    )


def with_shard(parameters: Parameters) -> Parameters:
    """Return `parameters` with `rank` and `world_size` filled in if they were not given."""
    shard = find_shard(parameters.rank, parameters.world_size)
    return msgspec.structs.replace(parameters, rank=shard.rank, world_size=shard.world_size)


_COUNTS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
"""The number of processes that mpirun or srun has started. They may be independent, so none counts as a rank."""


def warn_of_other_ranks() -> None:
    """Warn if a reader that reads everything, because no ranks were found, seems to be one of several."""
    shard = _from_torch_distributed()
    if shard is not None and shard.world_size > 1:
        _log.warning(
            "this reader was made before torch's process group, so it reads all of the data, and so does each of the "
            "%d ranks that made theirs like this: make it after init_process_group (Lightning: in train_dataloader), "
            "or give it 'rank' and 'world_size'; rank=0, world_size=1 if it is to read everything",
            shard.world_size,
        )
    if find_shard() is not WHOLE:
        return
    for name in _COUNTS:
        count = os.environ.get(name, "")
        if count.isdigit() and int(count) > 1:
            _log.warning(
                "this reader reads all of the data, and so may each of %s processes (the environment has %s=%s): if "
                "they train together, give it 'rank' and 'world_size', or set RANK and WORLD_SIZE in each; "
                "rank=0, world_size=1 if it is to read everything",
                *(count, name, count),
            )
            return


def shard_in_environment(environment: Mapping[str, str]) -> Shard | None:
    """Return the shard by RANK and WORLD_SIZE, or None if neither is set; raises ParameterError if one is missing."""
    found = {name: environment[name] for name in ("RANK", "WORLD_SIZE") if environment.get(name)}
    if not found:
        return None
    if len(found) == 1:
        ((name, value),) = found.items()
        missing = "WORLD_SIZE" if name == "RANK" else "RANK"
        raise ParameterError(
            f"the environment has {name}={value} but no {missing}: a shard needs both or neither; "
            f"set {missing} too, or give 'rank' and 'world_size' as parameters, or make the reader when torch's "
            "process group is initialised (Lightning: in train_dataloader)"
        )
    return Shard(_number("RANK", found["RANK"]), _number("WORLD_SIZE", found["WORLD_SIZE"]), "RANK and WORLD_SIZE")


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ParameterError(
            f"the environment has {name}={text!r}: expected a whole number; "
            "correct it, or give 'rank' and 'world_size' as parameters"
        ) from None


def _from_arguments(rank: int | None, world_size: int | None) -> Shard | None:
    if (rank is None) != (world_size is None):
        raise ParameterError(f"'rank' and 'world_size' go together, got rank={rank}, world_size={world_size}")
    return None if rank is None or world_size is None else Shard(rank, world_size, "the parameters")


def _from_torch_distributed() -> Shard | None:
    distributed = sys.modules.get("torch.distributed")
    # torch can be built without it; then the module is there and has no process groups.
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Shard(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _from_ray_train() -> Shard | None:
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
    except RuntimeError:  # this process only started the training
        return None
    rank, world_size = context.get_world_rank(), context.get_world_size()
    # Before Ray 2.43 there was always a context; outside of a worker it said None.
    return None if rank is None or world_size is None else Shard(rank, world_size, "ray.train.get_context()")


def _from_caffe() -> Shard | None:
    caffe = sys.modules.get("caffe")
    # Caffe before 1.0 has neither function: it trains on one device only.
    if caffe is None or not hasattr(caffe, "solver_count"):
        return None
    return Shard(caffe.solver_rank(), caffe.solver_count(), "caffe.solver_rank() and caffe.solver_count()")
