"""The pipeline for `model.fit`: a PyDataset, and a generator; Keras 3 with any backend."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import keras  # type: ignore[import-untyped]

from ..workers.api import nearest
from ..workers.base import ParameterError, shortens_tracebacks
from .batch_reader import BatchReader, DatasetOverReader, owning_reader
from .delivery import NamedBatch, describes_another
from .epoch_iterator import EpochIterator
from .keywords import ReaderArguments, SourceLike, names_arguments_of


class KerasDataset(DatasetOverReader, keras.utils.PyDataset):  # type: ignore[misc]
    """An epoch of whole batches, made anew, in other order, for every epoch of `fit`.

        train = KerasDataset({"npy": {"data": "x.npy", "label": "y.npy"}}, batch_size=64, shuffle=True)
        valid = KerasDataset({"npy": {"data": "x_valid.npy", "label": "y_valid.npy"}}, batch_size=64)
        model.fit(train, validation_data=valid, epochs=5)

    The arguments are those of BatchReader, `reader` is the BatchReader underneath. `inputs`, `targets` and `weights`
    name the tops that the model gets as such, one or a list of them, for models with several inputs or outputs; without
    them the first top is the input, the second the target and the third the sample weight, and the lengths that `pad`
    makes are none of them.

    Keras asks for batches by number, in an order of its own; it gets them in the order of the seed, each once. What
    Keras draws only to look at it, when it builds a model, is delivered again. If a pass has no length (`epochs=None`,
    a stream, a sampler that says it epoch by epoch), `fit` needs `steps_per_epoch`, and `evaluate` and `predict` need
    `steps`: else they never end.
    """

    @names_arguments_of(BatchReader)
    @shortens_tracebacks
    def __init__(
        self,
        source: SourceLike = None,
        *,
        inputs: str | Sequence[str] | None = None,
        targets: str | Sequence[str] | None = None,
        weights: str | None = None,
        **arguments: Unpack[ReaderArguments],
    ) -> None:
        super().__init__(workers=1, use_multiprocessing=False)
        self.reader = owning_reader(KerasDataset, source, arguments)
        if inputs is None and targets is None and weights is None:
            self.reader._pipeline.plan.require_order("KerasDataset takes inputs, targets and weights by position")
        own = [top.name for top in self.reader.tops if not describes_another(top)]
        self._roles = _roles(list(self.reader.specs), own, inputs, targets, weights)
        self._epochs = EpochIterator(self.reader)
        self._begins = True

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch. Keras asks for it whenever it begins a pass over the data, and at no other time."""
        if sys._getframe(1).f_globals.get("__name__", "").startswith("keras."):  # a user may ask within a pass
            self._begins = True
        return self._epochs.length

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """The next batch: (inputs,), (inputs, targets) or (inputs, targets, weights). `index` does not matter.

        Each is an array, or, where a list of tops was named, a dict of arrays.
        """
        if self._begins:
            self._epochs.begin()
            self._begins = False
        return self._deal(self._epochs.next())

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """One pass. Older releases of Keras have none, and Python would wait for an IndexError, which never comes."""
        self._begins, length = True, self._epochs.length
        for number in itertools.count() if length is None else range(length):
            yield self[number]

    def generator(self) -> Iterator[tuple[Any, ...]]:
        """The same batches without end, for `fit(train.generator(), steps_per_epoch=len(train), shuffle=False)`."""
        while True:
            yield self._deal(self._epochs.next())

    def _deal(self, batch: NamedBatch) -> tuple[Any, ...]:
        return tuple(
            batch[role] if isinstance(role, str) else {name: batch[name] for name in role} for role in self._roles
        )


def _roles(
    tops: Sequence[str],
    own: Sequence[str],
    inputs: str | Sequence[str] | None,
    targets: str | Sequence[str] | None,
    weights: str | None,
) -> list[str | tuple[str, ...]]:
    """Return the tops of inputs, targets and sample weights, as far as there are such; raises ParameterError.

    `own`: the tops that describe no other one. Lengths get a role only by name: as third top they would be weights.
    """
    if inputs is None and targets is None and weights is None:
        if len(own) > 3:
            raise ParameterError(
                f"KerasDataset: there are {len(own)} tops, {', '.join(own)}: say which are 'inputs', 'targets' and "
                "'weights', or choose three of them with 'tops'"
            )
        return list(own)
    given = {"inputs": inputs, "targets": targets, "weights": weights}
    roles = {role: names if isinstance(names, str) else tuple(names) for role, names in given.items() if names}
    for role, needed in (("targets", "inputs"), ("weights", "targets")):
        if role in roles and needed not in roles:
            raise ParameterError(f"KerasDataset: parameter {role!r} is {given[role]!r}, but {needed!r} is missing")
    for role, names in roles.items():
        for name in [names] if isinstance(names, str) else names:
            if name not in tops:
                raise ParameterError(
                    f"KerasDataset: parameter {role!r} names {name!r}{nearest(name, tops)}; the tops are "
                    f"{', '.join(tops)}"
                )
    return list(roles.values())
