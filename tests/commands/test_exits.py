"""What every command does with what it is given, and how it ends."""

from __future__ import annotations

import pytest
from invoke.program import Program

import tasks
from tests.kiln import ROOT
from torchkiln.errors import UsageError


def ended(*words: str) -> object:
    """How `./inv` ends with these words."""
    program = Program()
    with pytest.raises(SystemExit) as raised:
        program.run(["inv", "--search-root", str(ROOT), *words], exit=False)
    return raised.value.code


@pytest.mark.parametrize(
    ("task", "option"),
    [
        ("build", "--push"),
        ("build", "--from"),
        ("build", "--for"),
        ("build", "--require"),
        ("build", "--engine"),
        ("build", "--plain-http"),
        ("build", "--target"),
        ("plan", "--extra-requirements"),
        ("pull", "--name"),
        ("validate", "--image"),
        ("verify", "--image"),
        ("load", "--tag"),
        ("shell", "--command"),
        ("matrix", "--format"),
    ],
)
def test_an_option_that_is_given_but_empty_is_refused(
    capsys: pytest.CaptureFixture[str], task: str, option: str
) -> None:
    """A variable that is not set is no wish to go without, and nothing is asked or made then."""
    place = ["127.0.0.1:1/nowhere"] if task == "pull" else []
    assert ended(task, *place, option, "") == UsageError.exit_code
    assert capsys.readouterr().err.startswith(f"error: {option} is empty\n")


def test_an_option_that_may_be_repeated_is_a_list_of_words() -> None:
    """Of another kind, `--plain-http HOST` would be read as its letters."""
    for name in tasks.__all__:
        for argument in getattr(tasks, name).get_arguments():
            assert argument.kind is list or argument.name not in getattr(tasks, name).iterable, (name, argument.name)


def test_what_is_not_given_is_as_the_task_has_it() -> None:
    """Options that are left out are none of those that are empty."""
    assert ended("build") == UsageError.exit_code
    assert {one.name for one in tasks.build.get_arguments()} >= {"push", "from_", "for_"}


def test_a_command_without_options_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The defaults of a task are those that its signature states."""
    Program().run(["inv", "--search-root", str(ROOT), "matrix", "--target", "torch213-cpu"], exit=False)
    assert "torch213-cpu" in capsys.readouterr().out
