"""`./inv test`, `./inv check` and `./inv fix`: for those who change Torchkiln."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from invoke.tasks import task

from torchkiln import process
from torchkiln.commands import checkout
from torchkiln.commands.exits import guarded, leave
from torchkiln.commands.matrix import listed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from invoke.context import Context


@task(
    positional=[],
    iterable=["only"],
    help={"only": "paths of tests; may be repeated", "golden": "write golden files anew, to be read as a diff"},
)
@guarded
def test(_: Context, only: Sequence[str], golden: bool = False) -> None:
    """Run the tests; TORCHKILN_REQUIRE=docker,registry,sandbox,network makes a missing one a failure."""
    raise SystemExit(tool("pytest", *only, *(["--golden"] if golden else [])))


@task
@guarded
def check(_: Context) -> None:
    """What CI runs, changing nothing: style, types, generated parts."""
    for path, text in generated().items():
        if not path.exists() or path.read_text() != text:
            leave(
                f"error: {path.relative_to(checkout.ROOT)} is not what the matrix makes of it now\n  try: ./inv fix", 1
            )
    codes = [tool("ruff", "format", "--check", "."), tool("ruff", "check", "."), tool("mypy")]
    raise SystemExit(max(codes))


@task
@guarded
def fix(_: Context) -> None:
    """Mend what can be mended: format, style, the README's table, the matrix's schema, requirements.lock."""
    for path, text in generated().items():
        path.write_text(text)
    lock = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]  # for each newer Python too
    lock += ["--generate-hashes", "--no-emit-index-url", "--no-annotate", "--custom-compile-command", "./inv fix"]
    tool(*lock, "--output-file", "requirements.lock", "requirements.in")
    tool("ruff", "check", "--fix", "--quiet", ".")
    raise SystemExit(tool("ruff", "format", "."))


def generated() -> dict[Path, str]:
    """What is written from something else: the README's table of targets, and the schema of the matrix for editors."""
    from torchkiln.matrix import editors, facts
    from torchkiln.report import rows

    return {
        checkout.README: rows.filled(checkout.README.read_text(), listed([])),
        editors.SCHEMA: editors.text(facts.read()),
    }


def tool(*arguments: str) -> int:
    """Run a development tool of .venv on this checkout, attached to the terminal."""
    command = [sys.executable, "-m", *arguments]
    return process.start(command, cwd=checkout.ROOT, stdin=0, stdout=None, stderr=None, own_group=False).wait()
