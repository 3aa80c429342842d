"""How a command ends: an error becomes one message and an exit code, here and nowhere else."""

from __future__ import annotations

import functools
import inspect
import io
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchkiln import home, room
from torchkiln.errors import HostError, TorchkilnError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def guarded(function: Callable[..., None]) -> Callable[..., None]:
    """Turn errors into one message on stderr and their exit code; an option that is given, but empty, is an error."""
    known = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401  invoke passes what it parsed
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: children and temporaries go
        print_anything()
        try:
            function(*args, **_given(kwargs))
            sys.stdout.flush()
        except TorchkilnError as error:
            leave(f"error: {error}", error.exit_code)
        except KeyboardInterrupt:
            leave("interrupted: nothing is half done, run it again to go on", 130)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; say nothing more
            raise SystemExit(141) from None
        except OSError as error:
            if error.errno is None:
                raise
            told = (
                _full(error)
                if error.errno in room.FULL
                else HostError(error.strerror or str(error), where=str(error.filename or ""), remedy="./inv doctor")
            )
            leave(f"error: {told}", told.exit_code)

    parameters = [one.replace(default=None) if one.default == "" else one for one in known.parameters.values()]
    wrapper.__signature__ = known.replace(parameters=parameters)  # type: ignore[attr-defined]  # which invoke reads
    return wrapper


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """What was said; UsageError for an empty word: whoever wrote `--push "$PLACE"` meant a place, not none."""
    for name, value in options.items():
        if any(isinstance(word, str) and not word.strip() for word in (value if isinstance(value, list) else [value])):
            option = "--" + name.strip("_").replace("_", "-")
            raise UsageError(f"{option} is empty", remedy=f"{option} with a value, or without it; is a variable unset?")
    return {name: value for name, value in options.items() if value is not None}


def _full(error: OSError) -> HostError:
    """Which disk is full: that of the file, if one is named, else the fuller one of those that are written to."""
    file = Path(str(error.filename))
    written = (home.locate(os.environ).root, Path(os.environ.get("TMPDIR") or "/tmp"))  # noqa: S108  as tempfile has it
    told = [file.parent] if file.is_absolute() else [folder for folder in written if folder.is_dir()]
    return room.full(min(told, key=lambda folder: shutil.disk_usage(folder).free))


def print_anything() -> None:
    """Where a terminal's encoding has no ≥ or …, a question mark stands for it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def leave(message: str, code: int) -> None:
    """Say why and exit."""
    sys.stderr.write(f"{message}\n")
    raise SystemExit(code) from None
