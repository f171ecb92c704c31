"""The ground of all other rooms, without NumPy: errors, extras, files, deadlines."""

from __future__ import annotations

from .closing import Closing, OwnProcess, close_all, interrupts_deferred
from .deadlines import deadline, moving
from .errors import (
    AssemblerDied,
    BlobfeedError,
    ConcurrentUseError,
    DescriptorLimitError,
    EndOfData,
    ExtraMissing,
    FetchOrderError,
    InexactValueError,
    InterpreterError,
    LoaderDied,
    ParameterError,
    PipelineClosed,
    PipelineStalled,
    RingAllocationError,
    SampleError,
    SampleShapeError,
    SampleTooLargeError,
    SocketPathError,
    SourceError,
    TooManyBadSamples,
    UnequalShapesError,
)
from .extras import EXTRAS, is_in_program, is_installed, need
from .files import (
    AnotherHost,
    absolute,
    allocate,
    another_host,
    be_another_host,
    check_replaceable,
    fill_standard_streams,
    in_folder,
    read_whole,
    replacing,
    write_whole,
)
from .keys import blake2b, derive_key, text_digest
from .tracebacks import shorten, shortens_tracebacks
