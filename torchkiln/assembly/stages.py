"""What a build tells of its stages, though they overlap: when each kind of work begins, and how long it took."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchkiln.console import note

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True, kw_only=True)
class Stages:
    """Seconds of each stage, from the beginning of its first piece of work to the end of its last so far."""

    seconds: dict[str, float]
    _began: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def piece(self, stage: str) -> Iterator[None]:
        """A piece of a stage's work, in any thread; the first one is told."""
        with self._lock:
            if stage not in self._began:
                self._began[stage] = time.monotonic()
                note(f"{stage} …")
        yield
        with self._lock:
            self.seconds[stage] = round(time.monotonic() - self._began[stage], 3)

    def tell(self) -> None:
        """Say how long each took of those that began here: others tell it themselves."""
        for stage in [name for name in self.seconds if name in self._began]:
            note(f"{stage}: {self.seconds[stage]:.1f} s")
