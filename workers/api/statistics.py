"""The counts of a pipeline."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from .source import CacheCounts


@dataclass(frozen=True, slots=True)
class Statistics:
    """The counts at one moment, since the pipeline started."""

    batches: int = 0
    """taken by the trainer"""
    stalls: int = 0
    """batches for which the trainer had to wait"""
    stall_s: float = 0.0
    """seconds that the trainer waited"""
    start_s: float = 0.0
    """seconds of these before the first batch, which no prefetching can avoid"""
    loaders: int = 0
    """loaders that run now"""
    loader_deaths: int = 0
    """loaders that died"""
    replaced: int = 0
    """rows into which another sample was put, also by loaders that work ahead; each time a bad one comes"""
    dropped_messages: int = 0
    """frames that were not ours, not valid or not expected"""
    tasks: int = 0
    """parts of batches that were made"""
    cache_hits: int = 0
    """samples that the decoded cache had, for loaders that work ahead too"""
    cache_misses: int = 0
    """samples that it did not have yet: they were read from the source"""
    damaged_in_cache: int = 0
    """samples of the decoded cache whose checksum was wrong: they were decoded again from the source"""
    diagnosis: str = ""
    """one sentence: the part that limits the speed, and the reason"""

    def with_cache(self, counts: CacheCounts) -> Statistics:
        """Return these counts with the cache counts of one more process added."""
        return replace(
            self,
            cache_hits=self.cache_hits + counts.hits,
            cache_misses=self.cache_misses + counts.misses,
            damaged_in_cache=self.damaged_in_cache + counts.damaged,
        )

    def __repr__(self) -> str:
        """Show the counts that are not zero, seconds to the millisecond, and the diagnosis last."""
        counts = {
            name: value if isinstance(value, str) else round(value, 3) for name, value in asdict(self).items() if value
        }
        return f"Statistics({', '.join(f'{name}={count!r}' for name, count in counts.items())})"
