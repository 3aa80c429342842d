"""Lock → verified files, parallel, renamed into place.

Only a file whose sha256 was checked gets its final name, so a later run looks at names and sizes alone and asks
nobody. Looked in first: the cache, then the folders in TORCHKILN_FIND_LINKS, then the index. Partial files
survive failures, Ctrl-C and kills, and are gone on with.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from torchkiln import console, network, room, wheelcache
from torchkiln.download import Surroundings, download
from torchkiln.errors import FetchError, HashMismatchError, TorchkilnError
from torchkiln.lock import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torchkiln.home import Home
    from torchkiln.lock.lockfile import Lock, Pin

AT_ONCE = 6
"""Downloads; more of them brought nothing, since hashing and TLS fill two cores by then."""


def fetch(
    home: Home,
    lock: Lock,
    *,
    environment: Mapping[str, str],
    on_ready: Callable[[Pin, Path], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    stop: threading.Event | None = None,
) -> Mapping[str, Path]:
    """Every wheel of a lock as a verified file, by sha256; `on_ready` is told of each, in this thread, as it comes.

    Raises FetchError, HashMismatchError or HostError, and StoppedError when another thread sets `stop`; what has come
    by then is kept.
    """
    tell = on_ready or (lambda _pin, _path: None)
    ready: dict[str, Path] = {}
    missing: list[Pin] = []
    with _room(home, lock):
        folders = resolve.folders(environment)
        for pin in lock.pins:
            path = wheelcache.cached(home, pin) or wheelcache.from_folders(home, pin, folders)
            if path is None:
                missing.append(pin)
            else:
                ready[pin.sha256] = path
                tell(pin, path)
        if missing:
            wheelcache.check_room(home, missing)
            with _links(missing, environment):
                urls = resolve.locate(lock, missing, environment)
                for pin, path in _downloaded(
                    home, missing, urls, environment=environment, sleep=sleep, stop=stop or threading.Event()
                ):
                    ready[pin.sha256] = path
                    tell(pin, path)
    return ready


@contextmanager
def _links(missing: Sequence[Pin], environment: Mapping[str, str]) -> Iterator[None]:
    """What is said of wheels that can't be had, with why those in the folders at hand were not used."""
    try:
        yield
    except (FetchError, HashMismatchError) as error:
        if not (why := resolve.unused(missing, environment)):
            raise
        what = f"{error.what}\n{resolve.FIND_LINKS} was of no use: {'; '.join(why)}"
        raise type(error)(what, where=error.where, remedy=error.remedy) from error


@contextmanager
def _room(home: Home, lock: Lock) -> Iterator[None]:
    """HostError with what is still to come, wherever a disk turns out to be full."""
    try:
        yield
    except OSError as error:
        if error.errno not in room.FULL:
            raise
        needed = sum(pin.size or 0 for pin in lock.pins if not home.wheel(pin.sha256, pin.filename).exists())
        raise room.full(home.root, "wheels are fetched", needed) from error


def _downloaded(
    home: Home,
    pins: list[Pin],
    urls: Mapping[str, str],
    *,
    environment: Mapping[str, str],
    sleep: Callable[[float], None],
    stop: threading.Event,
) -> Iterator[tuple[Pin, Path]]:
    """Wheels as they come, the biggest begun first; the first failure stops all."""
    ordered = sorted(pins, key=lambda pin: -pin.weight)
    with (
        network.client(environment, connections=AT_ONCE) as client,
        _progress(pins) as advance,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        around = Surroundings(client=client, advance=advance, stopped=stop.is_set, sleep=sleep)
        futures = {pool.submit(_one, home, pin, urls[pin.sha256], around): pin for pin in ordered}
        try:
            for future in as_completed(futures):
                yield futures[future], _result(future, futures, pool, stop)
        finally:  # also when the caller stops asking, or presses Ctrl-C
            _end(pool, stop)


def _end(pool: ThreadPoolExecutor, stop: threading.Event) -> None:
    stop.set()
    pool.shutdown(cancel_futures=True)


def _result(
    future: Future[Path], futures: Iterable[Future[Path]], pool: ThreadPoolExecutor, stop: threading.Event
) -> Path:
    """The path; or all others are ended and every failure is told."""
    error = future.exception()
    if error is None:
        return future.result()
    _end(pool, stop)
    others = [other.exception() for other in futures if other is not future and not other.cancelled()]
    faults = [fault for fault in (error, *others) if isinstance(fault, TorchkilnError)]
    if len(faults) < 2:  # noqa: PLR2004  one failure speaks for itself
        raise error
    what = "; ".join(f"{fault.what} ({fault.where})" if fault.where else fault.what for fault in faults)
    raise type(faults[0])(what, where=faults[0].where, remedy=faults[0].remedy) from error


def _one(home: Home, pin: Pin, url: str, around: Surroundings) -> Path:
    with wheelcache.alone(home, pin, around):
        if path := wheelcache.cached(home, pin):  # another build fetched it while this one waited
            around.advance(path.stat().st_size)
            return path
        path = _local(home, pin, url) if url.startswith("file:") else _remote(home, pin, url, around)
    if not console.stderr.is_terminal:
        console.note(f"fetched {pin.filename} ({path.stat().st_size / 1e6:.1f} MB)")
    return path


def _local(home: Home, pin: Pin, url: str) -> Path:
    """From an index that is a folder of this machine."""
    file = Path(unquote(urlsplit(url).path))
    if path := wheelcache.adopt(home, pin, file):
        return path
    raise HashMismatchError(f"{pin.filename} has other bytes than the lock pins", where=str(file))


def _remote(home: Home, pin: Pin, url: str, around: Surroundings) -> Path:
    partial = wheelcache.partial_of(home, pin)
    download(pin, url, partial, around)
    return wheelcache.place(home, pin, partial)


@contextmanager
def _progress(pins: Sequence[Pin]) -> Iterator[Callable[[int], None]]:
    """A bar over all bytes on a terminal; elsewhere each finished file is a line."""
    known = [pin.size for pin in pins if pin.size is not None]
    total = sum(known)
    if not console.stderr.is_terminal:
        console.note(f"fetching {total / 1e6:.0f} MB" + (" and more of unknown size" * (len(known) < len(pins))))
        yield lambda _count: None
        return
    columns = (TextColumn("fetching"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console.stderr, transient=True) as bar:
        task = bar.add_task("fetching", total=total if len(known) == len(pins) else None)
        yield lambda count: bar.advance(task, count)
