"""What a pipeline counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from .source import CacheCounts


@dataclass(frozen=True, slots=True)
class Statistics:
    """A moment's counts, since the pipeline was made."""

    batches: int
    """taken by the trainer"""
    stalls: int
    """batches that the trainer had to wait for"""
    stall_s: float
    """seconds that it waited"""
    start_s: float
    """seconds of these before the first batch, which no prefetching can avoid"""
    loaders: int
    """that run now"""
    loader_deaths: int
    """that died"""
    replaced: int
    """rows into which another sample was put, also by loaders that work ahead; each time a bad one comes"""
    dropped_messages: int
    """frames that were not ours, not valid or not expected"""
    tasks: int
    """parts of batches that were made"""
    cache_hits: int = 0
    """samples that the decoded cache had, for loaders that work ahead too"""
    cache_misses: int = 0
    """samples that it did not have yet: they were read from the source"""
    damaged_in_cache: int = 0
    """samples of the decoded cache whose checksum was wrong: they were made anew from the source"""
    diagnosis: str = ""
    """What limits the speed, and why, in a sentence"""

    def with_cache(self, counts: CacheCounts) -> Statistics:
        """These, and the counts of one more process."""
        return replace(
            self,
            cache_hits=self.cache_hits + counts.hits,
            cache_misses=self.cache_misses + counts.misses,
            damaged_in_cache=self.damaged_in_cache + counts.damaged,
        )

    def __repr__(self) -> str:
        """What is not zero, seconds to the millisecond, and the sentence last."""
        counts = {
            name: value if isinstance(value, str) else round(value, 3) for name, value in asdict(self).items() if value
        }
        return f"Statistics({', '.join(f'{name}={count!r}' for name, count in counts.items())})"
