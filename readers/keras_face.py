"""The pipeline as `model.fit` wants it: a PyDataset, and a generator; Keras 3, whatever its backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

import keras  # type: ignore[import-untyped]

from ..workers.checks import nearest
from ..workers.errors import ParameterError
from ..workers.recipe import DecodeHook, PostprocessHook
from ..workers.run_plan import State
from ..workers.specs import AnyArray
from .batch_reader import BatchReader
from .handout import NamedBatch
from .looped import SourceLike

_PEEK = 2
"""Batches that Keras may draw and throw away to learn what shapes a model gets, before it begins with the first."""

Arrays = AnyArray | dict[str, AnyArray]


class KerasFeed(keras.utils.PyDataset):  # type: ignore[misc]
    """An epoch of whole batches, made anew, in other order, for every epoch of `fit`.

        train = KerasFeed({"npy": {"data": "x.npy", "label": "y.npy"}}, batch_size=64, shuffle=True)
        valid = KerasFeed({"npy": {"data": "x_valid.npy", "label": "y_valid.npy"}}, batch_size=64)
        model.fit(train, validation_data=valid, epochs=5)

    The arguments are those of BatchReader, `reader` is the BatchReader underneath; `epochs` is 1 and `last_batch` is
    "partial" unless given. `inputs`, `targets` and `weights` name the tops that the model gets as such, one or a list
    of them, for models with several inputs or outputs; without them the first top is the input, the second the target
    and the third the sample weight.

    Keras asks for batches by number, in an order of its own; it gets them in the order of the seed, each once. What
    Keras draws only to look at it, when it builds a model, is delivered again.
    """

    def __init__(
        self,
        source: SourceLike = None,
        *,
        inputs: str | Sequence[str] | None = None,
        targets: str | Sequence[str] | None = None,
        weights: str | None = None,
        decode: DecodeHook | None = None,
        postprocess: PostprocessHook | None = None,
        base_dir: Path | str | None = None,
        train: bool = True,
        **parameters: object,
    ) -> None:
        super().__init__(workers=1, use_multiprocessing=False)
        settings: dict[str, Any] = {"epochs": 1, "last_batch": "partial", **parameters, "copy": True}
        self.reader = BatchReader(
            source, decode=decode, postprocess=postprocess, base_dir=base_dir, train=train, **settings
        )
        self._roles = _roles(list(self.reader.specs), inputs, targets, weights)
        self._length = None if self.reader.parameters.epochs is None else len(self.reader)
        self._batches = self._endless()
        self._pass = 0
        self._begins = True
        self._replayed = False
        self._drawn: list[NamedBatch] = []

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch. Keras asks for it whenever it begins a pass over the data, and at no other time."""
        self._begins = True
        return self._length

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> tuple[Arrays, ...]:
        """The next batch: (inputs,), (inputs, targets) or (inputs, targets, weights). `index` does not matter."""
        if self._begins or self._pass == self._length:
            self._begin_pass()
        batch = next(self._batches)
        self._pass += 1
        self._drawn.append(batch)
        del self._drawn[_PEEK + 1 :]
        return self._dealt(batch)

    def generator(self) -> Iterator[tuple[Arrays, ...]]:
        """The same batches without end, for `fit(feed.generator(), steps_per_epoch=len(feed))`."""
        return (self._dealt(batch) for batch in self._batches)

    def _dealt(self, batch: NamedBatch) -> tuple[Arrays, ...]:
        return tuple(
            batch[role] if isinstance(role, str) else {name: batch[name] for name in role} for role in self._roles
        )

    def _endless(self) -> Iterator[NamedBatch]:
        while True:
            yield from self.reader

    def _begin_pass(self) -> None:
        """Go on with the next epoch. What is left of a pass that ended early is skipped, unless it was only a peek.

        A pass is taken for a peek once: who calls `fit(feed, steps_per_epoch=1)` in a loop must not train for ever on
        the batches that come first.
        """
        left_early = 0 < self._pass != self._length
        self._replayed = left_early and len(self._drawn) <= _PEEK and not self._replayed
        if self._replayed:
            self._batches = chain(self._drawn, self._batches)
        elif left_early:
            self._batches = self._endless()
        self._pass = 0
        self._begins = False
        self._drawn = []

    def state_dict(self) -> State:
        return self.reader.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        self.reader.load_state_dict(state)
        self._batches = self._endless()
        self._pass = 0
        self._drawn = []

    def close(self) -> None:
        self.reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _roles(
    tops: Sequence[str], inputs: str | Sequence[str] | None, targets: str | Sequence[str] | None, weights: str | None
) -> list[str | tuple[str, ...]]:
    """Which tops are inputs, targets and sample weights, as far as there are such; raises ParameterError."""
    if inputs is None and targets is None and weights is None:
        if len(tops) > 3:
            raise ParameterError(
                f"KerasFeed: there are {len(tops)} tops, {', '.join(tops)}: say which are 'inputs', 'targets' and "
                "'weights', or choose three of them with 'tops'"
            )
        return list(tops)
    given = {"inputs": inputs, "targets": targets, "weights": weights}
    roles = {role: names if isinstance(names, str) else tuple(names) for role, names in given.items() if names}
    for role, needed in (("targets", "inputs"), ("weights", "targets")):
        if role in roles and needed not in roles:
            raise ParameterError(f"KerasFeed: parameter {role!r} is {given[role]!r}, but {needed!r} is missing")
    for role, names in roles.items():
        for name in [names] if isinstance(names, str) else names:
            if name not in tops:
                raise ParameterError(
                    f"KerasFeed: parameter {role!r} names {name!r}{nearest(name, tops)}; the tops are {', '.join(tops)}"
                )
    return list(roles.values())
