"""The pipeline as a tf.data.Dataset."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Unpack, overload

import tensorflow as tf  # type: ignore[import-untyped]

from ..workers.api import AnyArray, ArraySpec
from ..workers.base import ParameterError, PipelineClosed, shortens_tracebacks
from .batch_reader import BatchReader, owning_reader
from .epoch_iterator import EpochIterator
from .keywords import ReaderArguments, SourceLike, names_arguments_of


@overload
def TensorFlowDataset(source: BatchReader) -> tf.data.Dataset: ...
@overload
def TensorFlowDataset(source: SourceLike = None, **arguments: Unpack[ReaderArguments]) -> tf.data.Dataset: ...
@names_arguments_of(BatchReader)
@shortens_tracebacks
def TensorFlowDataset(  # noqa: N802 - named after what it gives
    source: SourceLike | BatchReader = None, **arguments: Any
) -> tf.data.Dataset:
    """A dataset of whole batches: dicts of tensors by name, of known type and shape.

        dataset = TensorFlowDataset({"npy": {"image": "x.npy", "label": "y.npy"}}, batch_size=64)
        for batch in dataset:
            train(batch["image"], batch["label"])

    The arguments are those of BatchReader; or one BatchReader, without `device` and `tuples`, whose `state_dict` and
    `close` then stay at hand. Each pass over the dataset is one loop over the reader: an epoch, in new order each time.
    The batch axis is known unless `last_batch` is "partial", the source a stream, or a `batch_sampler` says how many
    rows a batch has. Strings become tf.string. The batches are ready when asked for: `.map(…)` them, but do not
    `.shuffle` or `.batch` them again. What TensorFlow draws only to look at it, when Keras builds a model, is delivered
    again if a pass has a length, so not with `epochs=None`, and not of a stream or of a `sampler` without one.

    Raises ParameterError for a type that TensorFlow does not have, and what BatchReader raises.
    """
    if isinstance(source, BatchReader):
        reader = _check_reader(source, arguments)
    else:
        reader = owning_reader(TensorFlowDataset, source, arguments)
    given = reader.parameters
    always_full = given.last_batch in ("wrap", "drop") and reader.knows_samples and given.batch_sampler is None
    rows = given.batch_size if always_full else None
    joined = {name + end for name in given.concatenate for end in ("", "_samples")}
    signature = {
        name: _tensor_spec(name, spec, None if name in joined else rows) for name, spec in reader.specs.items()
    }
    epochs = EpochIterator(reader)
    dataset = tf.data.Dataset.from_generator(lambda: _one_epoch(reader, epochs), output_signature=signature)
    if reader is not source:
        # TensorFlow never lets go of the generator, so the reader would live until the program ends. The dataset
        # itself is let go, once no iterator and no dataset made from it is left.
        weakref.finalize(dataset, reader.close)
    else:
        # Left to itself TensorFlow draws a batch ahead: a state, which only such a reader gives, would count it.
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        dataset = dataset.with_options(options)
    if epochs.length is None:
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(epochs.length))


def _one_epoch(reader: BatchReader, epochs: EpochIterator) -> Iterator[dict[str, AnyArray]]:
    if epochs.length is None:
        yield from map(dict, reader)
        return
    epochs.begin()
    mine = epochs.begun
    for _ in range(epochs.length):
        if epochs.begun != mine:  # each would get a part of the batches, and none all
            raise PipelineClosed(
                "this pass is over: another one over the same TensorFlowDataset has begun; for two at a time, as in "
                "tf.data.Dataset.zip, make two of them"
            )
        yield dict(epochs.next())


def _check_reader(reader: BatchReader, others: Mapping[str, object]) -> BatchReader:
    if given := [name for name, value in others.items() if value is not None]:
        raise ParameterError(
            f"TensorFlowDataset: a BatchReader has its parameters already, got {', '.join(given)} beside it"
        )
    if reader.parameters.device or reader.tuples:
        raise ParameterError(
            f"TensorFlowDataset: the BatchReader has device={reader.parameters.device!r} and "
            f"tuples={reader.tuples}: expected device='' and tuples=False"
        )
    return reader


def _tensor_spec(name: str, spec: ArraySpec, rows: int | None) -> tf.TensorSpec:
    shape = (None,) * len(spec.shape) if spec.varies else spec.shape
    try:
        dtype = tf.string if spec.dtype.kind == "S" else tf.as_dtype(spec.dtype)
    except TypeError:
        raise ParameterError(
            f"top {name!r} has the type {spec.dtype}, of which TensorFlow has no tensors: leave it out of 'tops', or "
            "change it in decode"
        ) from None
    return tf.TensorSpec((rows, *shape), dtype)
