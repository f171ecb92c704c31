"""How epochs are cut into rounds, one batch for each rank: the rule of `last_batch`. Pure, and O(1) for any round.

`last_batch` applies when an epoch is not a multiple of batch_size × world_size:

- wrap: the endless sequence of epochs is cut into full batches. With `epochs`, samples of one more epoch fill the last
  round.
- drop: each epoch has as many full rounds as fit; the samples behind them are skipped.
- partial: the last round of an epoch splits the remaining samples among the ranks, in parts whose sizes differ by one
  at most; a rank that gets none has a round less in that epoch.

`start` and `count` need the length of all epochs. Batches from the place `start(at, k)` on are exactly those from `at`
on without the first k; batch_size, world_size and last_batch may differ, too, and still no sample of the epoch comes
twice.
"""

from __future__ import annotations

from typing import NamedTuple

from ..api import Parameters
from ..base import ParameterError


class At(NamedTuple):
    """A place in a run, where a round begins: item `item` of `epoch`."""

    epoch: int
    item: int


class Cut:
    """The cut of one rank. `items`: those of every epoch; None if lengths become known on the way.

    `gives_batches`: an item is a whole batch, and not a sample.
    """

    def __init__(self, given: Parameters, items: int | None = None, *, gives_batches: bool = False) -> None:
        self._given, self._items = given, items
        self._what = "batches" if gives_batches else "samples"
        self.each = 1 if gives_batches else given.batch_size
        """A rank's items in a full round."""
        self.round_items = self.each * given.ranks
        self._least = {"wrap": 1, "drop": self.round_items, "partial": given.own_rank + 1}[given.last_batch]

    def rounds_in(self, items: int) -> int:
        """Return the number of this rank's rounds in the last `items` items of an epoch; with wrap one may reach on."""
        whole, rest = divmod(items, self.round_items)
        return whole + (rest >= self._least)

    def start(self, at: At, k: int) -> At:
        """Return where the k-th round from `at` on begins; `at` itself where that is not known."""
        items = self._items
        if items is None:
            return at
        if self._given.last_batch == "wrap":
            return At(*divmod(at.epoch * items + at.item + k * self.round_items, items))
        if k < (first := self.rounds_in(items - at.item)):
            return At(at.epoch, at.item + k * self.round_items)
        epochs, number = divmod(k - first, self.rounds_in(items))
        return At(at.epoch + 1 + epochs, number * self.round_items)

    def count(self, at: At, epochs: int | None) -> int | None:
        """Return the number of this rank's rounds from `at` on, of `epochs` epochs in all; None: unknown, or no end."""
        items = self._items
        if items is None or epochs is None:
            return None
        if self._given.last_batch == "wrap":
            return max(0, -(-((epochs - at.epoch) * items - at.item) // self.round_items))
        if at.epoch >= epochs:
            return 0
        return self.rounds_in(items - at.item) + (epochs - at.epoch - 1) * self.rounds_in(items)

    @property
    def unequal_rest(self) -> int:
        """The samples in the last round of an epoch if it is known that only some ranks get one of them, else 0."""
        rest = (self._items or 0) % self.round_items
        return rest if self._given.last_batch == "partial" and rest < self._given.ranks else 0

    def refusal(self, items: int, epoch: str = "an epoch") -> str:
        """Return the reason why an epoch of so many items cannot be cut, "" if it can; `epoch` names it."""
        given = self._given
        sizes = f"{self._what}={items}, batch_size={given.batch_size}, world_size={given.ranks}"
        if given.last_batch == "drop" and items < self.round_items:
            return (
                f"last_batch is 'drop', and {epoch} has no full batch for every rank: {sizes}, but {self.round_items} "
                f"{self._what} are needed; use a smaller batch_size, or last_batch 'wrap' or 'partial'"
            )
        if given.last_batch == "partial" and 0 < items < given.ranks:
            return (
                f"last_batch is 'partial', and {epoch} has fewer {self._what} than there are ranks, so some would get "
                f"none: {sizes}; use last_batch 'wrap', or fewer ranks"
            )
        return ""

    def require(self) -> None:
        """Raise ParameterError if it is known that epochs cannot be cut."""
        if self._items is not None and (why := self.refusal(self._items)):
            raise ParameterError(why)
