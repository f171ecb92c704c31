"""The ground of all other rooms, without NumPy: errors, extras, files, deadlines, limits."""

from __future__ import annotations

from .closing import Closing, close_all, interrupts_deferred
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
    folder_of,
    in_folder,
    is_url,
    join_path,
    read_whole,
    replacing,
    require_ending,
    split_url,
    write_whole,
    writing,
)
from .keys import blake2b, derive_key, text_digest
from .limits import limits_kept
from .tracebacks import shorten, shortens_tracebacks
