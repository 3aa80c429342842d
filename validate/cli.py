"""The command line: `--expect FILE [--checks GLOB …] [--json]`, or `doctor`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from validate import child, discovery, doctor, expect, host, runner, verdict
from validate.model import ENVIRONMENT, FAIL, Answer

SCHEMA = 1
BAD_COMMAND_LINE = 2
CHOICE = "only these, and what they need; repeatable; the verdict is then incomplete at best"


def main(arguments: Sequence[str]) -> int:
    """Parse, run, print one result; progress goes to stderr."""
    options = _parser().parse_args(arguments)
    if options.answer:
        return child.main(options.answer)
    if options.command == "doctor":
        return doctor.main(options.expect or doctor.default_expectation(), as_json=options.json, environ=os.environ)
    if options.expect is None:
        print("--expect FILE is needed: without a row there is nothing to hold the image against", file=sys.stderr)
        return BAD_COMMAND_LINE
    try:
        row = expect.read(options.expect)
    except (OSError, ValueError, TypeError) as error:
        print(f"{options.expect}: {error}", file=sys.stderr)
        return BAD_COMMAND_LINE
    unknown = [glob for glob in options.checks or () if not discovery.named(glob)]
    if unknown:
        print(f"no check is called {unknown[0]}; the nearest is {discovery.nearest(unknown[0])}", file=sys.stderr)
        return BAD_COMMAND_LINE
    answers, facts = run(row, options.checks or ["*"], os.environ)
    said = verdict.verdict(answers)
    document = {
        "schema": SCHEMA,
        "target": row.target,
        "profile": options.profile,
        "host": facts,
        "checks": [answer.to_json() for answer in answers],
        "summary": verdict.summary(answers),
        "verdict": said,
    }
    print(json.dumps(document, default=str) if options.json else text(answers, said))
    return verdict.EXITS[said]


def run(
    row: expect.Expect, globs: Sequence[str], environ: Mapping[str, str]
) -> tuple[tuple[Answer, ...], dict[str, object]]:
    """Every check's answer, and the facts of the host."""
    runner.adopt_orphans()
    facts = host.facts()
    with runner.run_folder() as folder:
        settings = runner.Run(expect=row, host=facts, folder=folder, environ=dict(environ))
        return runner.run_all(discovery.discover(), settings, globs, _progress), facts


def text(answers: Sequence[Answer], said: str) -> str:
    """The report for people: one line a check, then what to do about those that need it."""
    lines = [line(answer) for answer in answers if answer.applicable]
    lines += [f"\n{item.id}: {item.explanation}" for item in answers if item.status in {FAIL, ENVIRONMENT}]
    return "\n".join([*lines, f"\nverdict: {said}"])


def line(answer: Answer) -> str:
    """One check: status, id, time, reason."""
    mark = " (optional)" if answer.status == FAIL and not answer.required else ""
    return f"{answer.status:<12}{answer.id:<24}{answer.seconds:6.1f} s  {answer.reason or answer.title}{mark}"


def _progress(answer: Answer) -> None:
    if answer.applicable and answer.reason != "not selected":
        print(line(answer), file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="validate", description="Hold this image against a row of the matrix.")
    parser.add_argument("command", nargs="?", choices=["run", "doctor"], default="run")
    parser.add_argument("--expect", type=Path, metavar="FILE", help="the row, as JSON")
    parser.add_argument("--checks", action="append", metavar="GLOB", help=CHOICE)
    parser.add_argument("--profile", choices=["smoke"], default="smoke", help="how thorough")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    return parser
