"""cc and c++ build programs that run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="cc and c++ build programs that run",
    explanation="torch.compile needs a C++ compiler for the CPU and a C compiler for GPU launchers. Add gcc and g++ to "
    "the base's packages, or put them on PATH.",
    needs=("host.scratch",),
    seconds=60,
)
PROGRAMS = {
    "cc": ("program.c", '#include <stdio.h>\nint main(void) { puts("works"); return 0; }\n'),
    "c++": ("program.cc", '#include <iostream>\nint main() { std::cout << "works\\n"; return 0; }\n'),
}


def run(_expect: Expect, context: Context) -> Result:
    """Each is found, compiles, links, and its program runs."""
    versions, problems = {}, []
    for compiler, (name, text) in PROGRAMS.items():
        path = shutil.which(compiler)
        if path is None:
            problems.append(f"{compiler} is not on PATH")
            continue
        versions[compiler] = command([path, "--version"]).stdout.splitlines()[:1]
        source = context.scratch / name
        source.write_text(text, encoding="ascii")
        problems += _problem(compiler, path, source)
    return failed("; ".join(problems), versions=versions) if problems else passed(versions=versions)


def _problem(compiler: str, path: str, source: Path) -> list[str]:
    program = source.with_suffix(".out")
    built = command([path, str(source), "-o", str(program)])
    if built.returncode:
        return [f"{compiler} cannot build a program: {headline(built.stdout)}"]
    ran = command([str(program)])
    return [] if ran.stdout.strip() == "works" else [f"a program of {compiler} does not run: {headline(ran.stdout)}"]


def command(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run; both streams together."""
    return subprocess.run(  # noqa: S603  a list, no shell
        arguments, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )


def headline(output: str) -> str:
    """The line of an output that says most: the first with an error, else the last."""
    lines = [line for line in output.strip().splitlines() if line] or ["no output"]
    return next((line for line in lines if "error" in line), lines[-1])[:300]
