"""What static checks look at: a row, its lock, an image, and what its layers hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchkiln.inspect import listing
from torchkiln.plan import config
from torchkiln.specs import adopted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torchkiln.inspect.listing import Contents, Entry
    from torchkiln.lock.lockfile import Lock
    from torchkiln.matrix.target import Target
    from torchkiln.oci.image import Config, Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Everything a check may ask, read beforehand; checks are pure."""

    target: Target
    lock: Lock
    image: Image
    layers: tuple[Contents, ...]
    tree: Mapping[str, Entry]
    """The file system that the layers make together."""

    @property
    def declared(self) -> Config:
        """How the row says the image starts."""
        return config(self.target, self.lock)

    @property
    def foreign(self) -> int:
        """How many of the lowest layers are of an image that others made, which the base is."""
        if self.target.base.kind == "debian":
            return 0
        titles = [layer.title for layer in self.image.layers]
        return titles.index(adopted(self.target.base)) if adopted(self.target.base) in titles else 0

    def members(self) -> Iterator[tuple[int, Entry]]:
        """Every member of every layer with the layer's number, deleted ones included."""
        return ((number, entry) for number, layer in enumerate(self.layers) for entry in layer.entries)


def subject(target: Target, lock: Lock, image: Image, layers: tuple[Contents, ...]) -> Subject:
    """Merge the layers, once for all checks."""
    return Subject(target=target, lock=lock, image=image, layers=layers, tree=listing.merge(layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticCheck:
    """One question; `judge` gives every problem in words, none when it holds."""

    id: str
    title: str
    explanation: str
    """What a failure means and what to do."""
    judge: Callable[[Subject], list[str]]
    applies: Callable[[Target], bool] = lambda _target: True
