"""Opens a pipeline: its plan, and the plug-ins that its parameters name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ...cluster import Bridge
from ...cluster.trial import try_nodes
from ...watching import Watching, with_files
from ...workers.api import AnySource, Hooks, Parameters
from ...workers.pipeline import Pipeline
from .planning import make_plan

_SHOWN = 2
"""Slots that a layer's blobs show: those of the last batch until they get the next one."""


def open_pipeline(
    parameters: Parameters,
    hooks: Hooks = Hooks(),  # noqa: B008 - frozen
    *,
    base_dir: Path | None = None,
    train: bool = True,
    source: AnySource | None = None,
    loans: int = 0,
) -> Pipeline:
    """Open the source, check the parameters and make one sample, so that mistakes surface here.

    Starts no process that stays. With remote loaders each node of the cluster makes a sample too. `base_dir`: the
    folder of relative paths. `train`: false for centred crops and no mirroring. `loans`: see Plan.
    Raises ParameterError, SourceError, and the exceptions of a decode hook on its first sample.
    """
    folder = base_dir or Path.cwd()
    given = with_files(parameters, folder)
    loans = _SHOWN if given.delivery == "view" else loans
    plan = replace(make_plan(given, hooks, folder, train, source), loans=loans)
    home = None
    if given.remote_loaders is not None:
        home = Bridge
        try:
            try_nodes(plan)
        except BaseException:
            plan.source.close()
            raise
    return Pipeline(plan, watch=Watching(given.trace, given.metrics, given.own_rank), remote_home=home)
