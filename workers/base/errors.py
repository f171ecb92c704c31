"""One exception class per cause, so that a program can distinguish causes without parsing messages.

Every message names the thing, its value, what was expected and what to do. Facts that a program may need, such as a
sample's index or exit codes, are attributes.
"""

from __future__ import annotations

from collections.abc import Sequence


class BlobfeedError(Exception):
    """The base class of all exceptions that blobfeed raises on purpose."""

    def __str__(self) -> str:
        # A file's name that is no UTF-8 has lone surrogates, at which print and most logs fail.
        return super().__str__().encode(errors="backslashreplace").decode()


class ParameterError(BlobfeedError, ValueError):
    """A parameter has an unknown name, a wrong type or an impossible value."""


class SourceError(BlobfeedError):
    """A source cannot be opened or contradicts itself, or a sampler or a stream gives no valid epoch."""


class SampleError(BlobfeedError):
    """One sample could not be made; `__cause__` is the loader's exception, if there is one."""

    def __init__(self, message: str, *, source: str = "", index: int = -1, path: str = "") -> None:
        super().__init__(message)
        self.source = source
        self.index = index
        self.path = path


class SampleTooLargeError(BlobfeedError, ValueError):
    """A sample of varying shape exceeds the declared maximum of its slot."""


class SampleShapeError(BlobfeedError, ValueError):
    """A sample's arrays do not fit their tops: other names, shapes or types, or smaller than the crop."""


class TooManyBadSamples(BlobfeedError):
    """`on_error: replace` met more bad samples than `max_bad_samples` allows."""

    def __init__(self, message: str, indices: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.indices = tuple(indices)


class LoaderDied(BlobfeedError):
    """Too many loaders died in a row, or loaders cannot start at all, so no more are started."""

    def __init__(self, message: str, exits: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.exits = tuple(exits)


class AssemblerDied(BlobfeedError):
    """The assembler process ended while the trainer still needed it."""


class PipelineStalled(BlobfeedError):
    """No batch came within `timeout_s`, setup hung for so long, or the trainer itself holds all slots."""


class PipelineClosed(BlobfeedError):
    """The pipeline was used after close(), or in a process that does not own it (a fork of the trainer)."""


class ConcurrentUseError(BlobfeedError, RuntimeError):
    """Two threads asked one reader for a batch at the same time. The reader remains usable."""


class EndOfData(BlobfeedError):
    """All the epochs that `epochs` asked for have been delivered."""


class RingAllocationError(BlobfeedError, MemoryError):
    """The memory for the pipeline, most of it for the ring of batch slots, is not available."""


class DescriptorLimitError(BlobfeedError, OSError):
    """The limit of open files leaves too few descriptors for the pipeline's sockets."""


class SocketPathError(BlobfeedError):
    """No directory was found for the sockets whose path fits into a socket address."""


class InterpreterError(BlobfeedError):
    """No Python interpreter of the trainer's own version could be found to run the assembler."""


class InexactValueError(BlobfeedError, ValueError):
    """An integer of a batch cannot be held exactly by the floating-point type of the top that it goes to."""


class UnequalShapesError(BlobfeedError, ValueError):
    """A batch has samples of different shapes, and neither `pad` nor `concatenate` says how to combine them.

    Or a padded sample has fewer channels than the mean or the scale.
    """


class ExtraMissing(BlobfeedError, ImportError):
    """A library is not installed that belongs to one of blobfeed's extras."""


class FetchOrderError(BlobfeedError, RuntimeError):
    """An AsyncReader was asked for a batch that was never fetched, or for more fetches at a time than its `njob`."""
