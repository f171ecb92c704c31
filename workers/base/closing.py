"""What is closed when its `with` block is left."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self


class Closing:
    """`with Thing() as thing:` closes the thing, however the block ends."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
