"""Breadth first through all states that a small run can come to; each is checked, and must have a way to the end."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from .small_feed import Wrong
from .variants import Variant
from .world import Event, World, is_fault


@dataclass(frozen=True)
class Exploration:
    """`wrong`: what must not be and was found, with the events that led there; nothing if all is well."""

    states: int
    transitions: int
    complete: bool
    wrong: str = ""


def explore(variant: Variant, most_states: int = 10_000_000) -> Exploration:
    """All states, or the nearest `most_states`; ends at the first that is wrong."""
    search = _Search(variant, most_states)
    wrong = search.run()
    return Exploration(len(search.origins), search.transitions, not search.waiting, wrong)


class _Search:
    def __init__(self, variant: Variant, most_states: int) -> None:
        self.transitions = 0
        self.origins: list[tuple[int, Event]] = []
        """For each state, from which one and by what event it was reached first."""
        self.waiting: deque[tuple[int, bytes]] = deque()
        self._most_states = most_states
        self._numbers: dict[int, int] = {}
        self._before: list[list[int]] = []
        """For each state, those from which an event that is no fault leads to it."""
        self._ends: list[int] = []
        self._note(World(variant.plan(), variant), -1, ("start",))

    def run(self) -> str:
        while self.waiting and len(self.origins) < self._most_states:
            number, snapshot = self.waiting.popleft()
            for event in list(_load(snapshot).events()):
                self.transitions += 1
                world = _load(snapshot)
                try:
                    world.apply(event)
                    world.check()
                except (Wrong, LookupError, ValueError, TypeError, AttributeError) as problem:
                    return f"{type(problem).__name__}: {problem}; {self._story(number, event)}"
                reached = self._note(world, number, event)
                if not is_fault(event):
                    self._before[reached].append(number)
        return "" if self.waiting else self._no_way()

    def _note(self, world: World, origin: int, event: Event) -> int:
        key = hash(world.key())
        if key not in self._numbers:
            number = self._numbers[key] = len(self.origins)
            self.origins.append((origin, event))
            self._before.append([])
            if world.at_end:
                self._ends.append(number)
            self.waiting.append((number, pickle.dumps(world, protocol=5)))
        return self._numbers[key]

    def _no_way(self) -> str:
        """Backwards from all ends: a state that is not met has no way to any."""
        met = set(self._ends)
        reached = deque(self._ends)
        while reached:
            for number in self._before[reached.popleft()]:
                if number not in met:
                    met.add(number)
                    reached.append(number)
        lost = next((number for number in range(len(self.origins)) if number not in met), None)
        return "" if lost is None else f"no way leads to the end; {self._story(lost)}"

    def _story(self, number: int, *last: Event) -> str:
        return "after " + ", ".join(" ".join(map(str, event)) for event in [*self._events_to(number), *last])

    def _events_to(self, number: int) -> list[Event]:
        return list(self._backwards(number))[::-1]

    def _backwards(self, number: int) -> Iterator[Event]:
        while number > 0:
            number, event = self.origins[number]
            yield event


def _load(snapshot: bytes) -> World:
    world: World = pickle.loads(snapshot)
    return world
