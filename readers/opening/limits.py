"""Protects the resource limits of this process, such as the number of open files, while user code is tried in it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from ...workers.base import ParameterError


@contextmanager
def limits_kept() -> Iterator[None]:
    """Restore the limits that user code changes in the block: it means to change a loader's, and this is the trainer.

    Raises ParameterError if the kernel refuses to restore a hard limit that was lowered.
    """
    limits = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    before = {name: resource.getrlimit(number) for name, number in limits.items()}
    try:
        yield
    finally:
        for name, number in limits.items():
            if (changed := resource.getrlimit(number)) != before[name]:
                _put_back(name, number, before[name], changed)


def _put_back(name: str, number: int, before: tuple[int, int], changed: tuple[int, int]) -> None:
    try:
        resource.setrlimit(number, before)
    except (ValueError, OSError) as error:
        raise ParameterError(
            f"the hook or source that setup tries has set {name} of this process from {before} to {changed} (soft, "
            f"hard), which cannot be put back ({error}): change the soft limit alone, or only where "
            "os.environ.get('BLOBFEED_ROLE') is 'loader'"
        ) from error
