"""Wheels on their way: fetched in a thread of their own, and waited for by whoever needs them, each for its own."""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torchkiln import fetch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torchkiln.assembly.stages import Stages
    from torchkiln.lock.lockfile import Lock, Pin
    from torchkiln.project import Project


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """The wheels of a lock as they come."""

    project: Project
    lock: Lock
    stages: Stages
    coming: Mapping[str, Future[Path]]
    """By sha256: those that are fetched in any case."""
    stop: threading.Event = field(default_factory=threading.Event)

    def of(self, pins: Iterable[Pin]) -> Mapping[str, Path]:
        """These wheels by sha256, as soon as the last of them is there; raises what went wrong with any."""
        wanted = list(pins)
        for pin in wanted:
            if pin.sha256 not in self.coming:  # nobody thought that it would be needed
                return self._fetched(wanted)
        return {pin.sha256: self.coming[pin.sha256].result() for pin in wanted}

    def run(self) -> None:
        """Fetch all that is coming; whoever waits is told of failure too."""
        try:
            self._fetched([pin for pin in self.lock.pins if pin.sha256 in self.coming])
        except BaseException as error:  # noqa: BLE001  raised where the wheel is waited for
            for wheel in self.coming.values():
                with suppress(InvalidStateError):  # it came
                    wheel.set_exception(error)

    def _fetched(self, pins: Iterable[Pin]) -> Mapping[str, Path]:
        own = replace(self.lock, pins=tuple(pins))
        with self.stages.piece("fetch"):
            return fetch.fetch(
                self.project.home,
                own,
                environment=self.project.environment,
                on_ready=self._arrived,
                stop=self.stop,
            )

    def _arrived(self, pin: Pin, path: Path) -> None:
        if pin.sha256 in self.coming:
            with suppress(InvalidStateError):  # another thread, that needed others too, had it at the same time
                self.coming[pin.sha256].set_result(path)


@contextmanager
def arriving(project: Project, lock: Lock, needed: Iterable[Pin], stages: Stages) -> Iterator[Arrivals]:
    """Begin to fetch the wheels that are needed; leaving stops what has not come."""
    coming: dict[str, Future[Path]] = {pin.sha256: Future() for pin in needed}
    wheels = Arrivals(project=project, lock=lock, stages=stages, coming=coming)
    thread = threading.Thread(target=wheels.run)
    if coming:
        thread.start()
    try:
        yield wheels
    finally:
        wheels.stop.set()
        if coming:
            thread.join()
