"""What the tasks print for the matrix of this repository."""

from __future__ import annotations

import inspect
import json
import os
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pytest

import tasks
from bench import catalogue
from tests.kiln import ROOT
from tests.test_plan import pin
from torchkiln.commands import checkout, development, output, selection
from torchkiln.commands.build import destinations
from torchkiln.commands.matrix import listed
from torchkiln.errors import ImageError, LockError, MatrixError, StoreError, UnknownTargetError, UsageError
from torchkiln.lock import fit, lockfile, rows, sections
from torchkiln.lock.sections import LockFile
from torchkiln.matrix import schema
from torchkiln.oci import digest

if TYPE_CHECKING:
    from pathlib import Path

    from invoke.tasks import Task

LOCKS = ROOT / "images/locks"
FAMILY = schema.load(ROOT / "matrix.yaml").targets
STATES = {row.id: rows.state(LOCKS, row) for row in FAMILY}
LOCKED, UNLOCKED = (
    [name for name, state in STATES.items() if (state == "locked") is wanted] for wanted in (True, False)
)


def printed(capsys: pytest.CaptureFixture[str], task: Task[Any], *target: str, **options: Any) -> str:  # noqa: ANN401  a task's own
    """What a task prints on stdout, its errors as they are; options that may be repeated are not given."""
    capsys.readouterr()
    repeated: dict[str, list[str]] = {name: [] for name in task.iterable if name != "target"}
    inspect.unwrap(task.body)(None, list(target), **(repeated | options))
    return capsys.readouterr().out


@pytest.mark.parametrize("patterns", [[""], ["torch213-cpu", ""]])
def test_an_empty_target_is_called_that(patterns: list[str]) -> None:
    """A variable that was not set is told as such, not as a target without a name."""
    with pytest.raises(UsageError, match="--target is empty"):
        selection.rows(patterns)
    with pytest.raises(UsageError, match="--target is empty"):
        listed(patterns)


@pytest.mark.parametrize("globs", [(), ("torch25-*",), ("*-hopper", "torch28-cu128")])
def test_matrix_for_github_has_a_job_for_each_row(capsys: pytest.CaptureFixture[str], globs: tuple[str, ...]) -> None:
    """In one line, in the matrix's order, for what --target selects; each knows whether it is locked."""
    text = printed(capsys, tasks.matrix, *globs, format="github")
    assert text.count("\n") == 1
    jobs = {job["target"]: job for job in json.loads(text)["include"]}
    chosen = [row.id for row in FAMILY if not globs or any(fnmatchcase(row.id, glob) for glob in globs)]
    assert list(jobs) == chosen
    assert {name: job["locked"] for name, job in jobs.items()} == {name: STATES[name] == "locked" for name in chosen}


def test_matrix_shows_every_row_once(capsys: pytest.CaptureFixture[str]) -> None:
    """With its lock's state; piped, a row takes a line unless lint warns."""
    lines = printed(capsys, tasks.matrix).splitlines()
    shown = {line.split()[0]: line for line in lines[1:-1]}
    assert list(shown) == list(STATES)
    assert [name for name, line in shown.items() if f" {STATES[name]} " not in f"{line} ".replace("*", " ")] == []
    assert lines[-1].startswith(f"{len(FAMILY)} rows: {len(LOCKED)} locked, ")


def test_matrix_keeps_to_locked_rows_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """For a workflow that builds what can be built."""
    jobs = json.loads(printed(capsys, tasks.matrix, format="github", locked=True))["include"]
    assert [job["target"] for job in jobs] == LOCKED


def test_json_is_a_format(capsys: pytest.CaptureFixture[str]) -> None:
    """--json and --format json print the same."""
    short = printed(capsys, tasks.matrix, "torch25-cu124", json=True)
    assert short == printed(capsys, tasks.matrix, "torch25-cu124", format="json")
    assert short == printed(capsys, tasks.matrix, "torch25-cu124", format="json", json=True)
    assert json.loads(short)[0]["id"] == "torch25-cu124"


def test_markdown_is_what_the_readme_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """`./inv fix` writes the same table between the marks."""
    assert printed(capsys, tasks.matrix, format="markdown") in development.generated()[checkout.README]


@pytest.mark.parametrize(("format", "json", "what"), [("yaml", False, "is not known"), ("github", True, "contradicts")])
def test_a_format_must_be_known(format: str, json: bool, what: str) -> None:  # noqa: A002, FBT001  the flags' names
    """And only one of them at a time."""
    with pytest.raises(UsageError, match=what) as raised:
        inspect.unwrap(tasks.matrix.body)(None, [], format=format, json=json)
    assert "github" in raised.value.remedy


def test_any_row_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """A refused one exits as a matrix with errors does; a good one needs no entry in the matrix."""
    with pytest.raises(SystemExit) as left:
        printed(capsys, tasks.matrix, explain="torch28-cu124-rtx4090d")
    assert left.value.code == MatrixError.exit_code
    assert "torch 2.8.0 has no cu124 build" in capsys.readouterr().out
    assert json.loads(printed(capsys, tasks.matrix, explain="torch25-cu124", json=True))["refused"] is False
    for more in ({"target": ["torch25-cpu"]}, {"target": [], "format": "github"}):
        with pytest.raises(UsageError, match="one id"):
            inspect.unwrap(tasks.matrix.body)(None, explain="torch25-cu124", **more)


def test_plan_names_the_rows_that_share_each_layer(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the whole matrix, not only of --target; what one row shares with another holds the other way too."""
    every = json.loads(printed(capsys, tasks.plan, *LOCKED, json=True))
    keys = {plan["target"]: {layer["key"] for layer in plan["layers"]} for plan in every}
    (plan,) = json.loads(printed(capsys, tasks.plan, "torch25-cu124", json=True))
    for layer in plan["layers"]:
        wanted = [name for name in LOCKED if name != "torch25-cu124" and layer["key"] in keys[name]]
        assert layer["shared_with"] == wanted
    assert any(layer["shared_with"] for layer in plan["layers"])


def test_a_plan_is_for_its_publish_target_and_compression(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a compression's own layers, with the same config; options that make no sense are refused before anything."""
    plain, asked, stated = (
        json.loads(printed(capsys, tasks.plan, "torch25-cu124", json=True, **options))[0]
        for options in ({}, {"compression": "zstd:7"}, {"for_": "zstd"})
    )
    assert [layer["key"] for layer in asked["layers"]] == [f"{one['key']}.zstd-7-1" for one in plain["layers"]]
    assert [layer["key"] for layer in stated["layers"]] == [f"{one['key']}.zstd-3-1" for one in plain["layers"]]
    assert plain["config"] == asked["config"] == stated["config"]
    for task in (tasks.plan, tasks.build, tasks.load, tasks.validate, tasks.shell, tasks.verify):
        with pytest.raises(UsageError, match="no publish target is called nowhere"):
            printed(capsys, task, "torch25-cu124", for_="nowhere")
        with pytest.raises(UsageError, match="'lz4' is no compression"):
            printed(capsys, task, "torch25-cu124", compression="lz4")


def test_an_image_for_a_publish_target_is_not_the_one_for_anywhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for is what was built so; the error has the command that builds it."""
    monkeypatch.setenv("TORCHKILN_HOME", str(tmp_path))
    with pytest.raises(StoreError, match="torch25-cu124-for-ghcr-zstd3 is not built") as raised:
        printed(capsys, tasks.verify, "torch25-cu124", for_="ghcr", compression="zstd")
    assert raised.value.remedy.startswith("./inv build --target torch25-cu124 --for ghcr --compression zstd:3")


def test_sharing_leaves_out_what_has_no_lock(capsys: pytest.CaptureFixture[str]) -> None:
    """A family is summed up as far as it is locked, and says what is not; a row without a lock has no plan."""
    summed = json.loads(printed(capsys, tasks.plan, "*", sharing=True, json=True))
    assert [row["target"] for row in summed["rows"]] == LOCKED
    assert [row["target"] for row in summed["left_out"]] == UNLOCKED
    assert summed["ratio"] > 1
    assert "rows:" in printed(capsys, tasks.plan, "torch25-*", sharing=True)
    for options in ({}, {"sharing": True}):
        with pytest.raises(LockError, match="is unlocked"):
            printed(capsys, tasks.plan, "torch25-cu118", **options)


def test_a_row_weighs_the_same_beside_one_or_all(capsys: pytest.CaptureFixture[str]) -> None:
    """What no other row has is counted against the whole matrix, whichever rows --target names."""
    every = json.loads(printed(capsys, tasks.plan, "*", sharing=True, json=True))
    one = json.loads(printed(capsys, tasks.plan, LOCKED[0], sharing=True, json=True))
    assert one["rows"] == [row for row in every["rows"] if row["target"] == LOCKED[0]]
    assert one["left_out"] == []
    (plan,) = json.loads(printed(capsys, tasks.plan, LOCKED[0], json=True))
    alone = [layer["size"] for layer in plan["layers"] if not layer["shared_with"]]
    assert one["rows"][0]["unique"]["bytes"] == sum(size or 0 for size in alone)
    assert one["rows"][0]["unique"]["unknown_layers"] == alone.count(None)


def warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix with torch25-cu124-trixie, which lint warns about and which has no lock."""
    shutil.copytree(ROOT / "validate", tmp_path / "validate")
    text = (ROOT / "matrix.yaml").read_text()
    row = "  - {releases: [torch25], accelerators: [cu124], bases: [trixie]}\n"
    (tmp_path / "matrix.yaml").write_text(text + row)
    monkeypatch.setattr(checkout, "ROOT", tmp_path)


@pytest.mark.parametrize("task", [tasks.plan, tasks.build])
def test_warnings_come_before_a_row_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Task[Any]
) -> None:
    """Once, also where something else then stops the row; a row without any is not spoken of."""
    warned(tmp_path, monkeypatch)
    options = {"validate": False} if task is tasks.build else {}
    with pytest.raises(LockError, match="torch25-cu124-trixie"):
        printed(capsys, task, "torch25-cu124-trixie", **options)
    err = capsys.readouterr().err
    assert err.count("warning: torch25-cu124-trixie: torch 2.5.1 comes without Triton on Python 3.13") == 1
    assert err.count("warning: ") == 1


def test_json_holds_only_finite_numbers() -> None:
    """No reader of JSON knows NaN: it is an error, not a document."""
    assert json.loads(output.document({"figure": 1.5})) == {"figure": 1.5}
    for figure in (float("nan"), float("inf")):
        with pytest.raises(MatrixError, match="no finite number"):
            output.document({"figure": figure})


@pytest.mark.parametrize("options", [[], ["--json"], ["--explain", "torch28-cu124-rtx4090d"], ["--target", "nothing"]])
def test_an_encoding_without_our_signs_is_no_error(options: list[str]) -> None:
    """≥, arrows and ellipses become what the encoding has; JSON stays JSON."""
    command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "matrix", *options]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, cwd=ROOT, capture_output=True, check=False
    )
    told = (done.stdout + done.stderr).decode("ascii")
    assert "Traceback" not in told
    assert done.returncode in {0, MatrixError.exit_code, UnknownTargetError.exit_code}
    if "--json" in options:
        assert len(json.loads(done.stdout)) == len(FAMILY)


def test_an_empty_id_is_no_id(capsys: pytest.CaptureFixture[str]) -> None:
    """--explain of a variable that was not set does not list the matrix."""
    with pytest.raises(UsageError, match="'' is no id"):
        printed(capsys, tasks.matrix, explain="")


def test_plan_takes_additions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What a user adds lies on top: all wheels of the row are still shared with it."""
    file = tmp_path / "serve.txt"
    file.write_text("tiny\n")
    with pytest.raises(LockError, match="torch25-cu124-with-serve is unlocked"):
        printed(capsys, tasks.plan, "torch25-cu124", extra_requirements=str(file))
    (row,) = selection.rows(["torch25-cu124"], extra=str(file))
    (name,) = fit.additions(row)
    above = rows.read(LOCKS, replace(row, extra=None)).pins
    tiny = lockfile.make(fit.added(row, ["tiny"], above), [pin("tiny")], "uv")
    fit.file_of(row, name, LOCKS).write_text(sections.render(LockFile(sections={name: tiny})))
    (plan,) = json.loads(printed(capsys, tasks.plan, "torch25-cu124", extra_requirements=str(file), json=True))
    assert plan["target"] == "torch25-cu124-with-serve"
    alone = [layer["title"] for layer in plan["layers"] if not layer["shared_with"]]
    assert alone == ["tiny 1", "bytecode of tiny 1", "validation suite"]
    assert all("torch25-cu124" in layer["shared_with"] for layer in plan["layers"] if layer["shared_with"])


def test_a_row_with_an_error_fails_the_list_and_gets_no_job(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People see it in words and exit 3; a workflow gets the others, and reads on stderr which are left out."""
    text = (ROOT / "tests/matrix/small.yaml").read_text()
    (tmp_path / "matrix.yaml").write_text(
        text.replace("releases: [torch25, torch26]", "releases: [torch25, torch26, torch28]")
    )
    (tmp_path / "validate").symlink_to(ROOT / "validate")
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    with pytest.raises(SystemExit) as left:
        printed(capsys, tasks.matrix)
    assert left.value.code == MatrixError.exit_code
    said = capsys.readouterr().out
    assert "torch 2.8.0 has no cu124 build" in said
    assert said.splitlines()[-1].startswith("5 rows: ")
    assert said.endswith(", 1 error\n")
    inspect.unwrap(tasks.matrix.body)(None, [], format="github")
    out, err = capsys.readouterr()
    assert "torch28-cu124" not in out
    assert len(json.loads(out)["include"]) == 4
    assert err == "left out, since lint has errors for them: torch28-cu124\n"


def test_a_row_without_a_lock_is_not_built(capsys: pytest.CaptureFixture[str]) -> None:
    """The error says which command locks it, and which index must be in reach for that."""
    row = next(row for row in FAMILY if not (LOCKS / row.lock_name).exists())
    with pytest.raises(LockError) as raised:
        printed(capsys, tasks.build, row.id, validate=False)
    assert raised.value.what.startswith(f"{row.id} is unlocked")
    assert raised.value.remedy.startswith(f"./inv lock --target {row.id}, where ")
    assert ("download.pytorch.org" in raised.value.remedy) is not row.accelerator.by_default


def test_what_a_row_uses_is_printed_for_pip(capsys: pytest.CaptureFixture[str]) -> None:
    """`lock --requirements`: the lines that its image is made from, whose digest is in its label."""
    (row,) = [row for row in FAMILY if row.id == LOCKED[0]]
    text = printed(capsys, tasks.lock, row.id, requirements=True)
    assert digest.of_bytes(text.encode()) == rows.read(LOCKS, row).digest


def test_additions_name_another_row(tmp_path: Path) -> None:
    """--extra-requirements with an id or a glob: the rows below, with the additions on top."""
    file = tmp_path / "app.txt"
    file.write_text("web\n")
    (row,) = selection.rows([LOCKED[0]], extra=str(file))
    assert row.id == f"{LOCKED[0]}-with-app"
    assert selection.one_row([row.id], str(file)) == row


@pytest.mark.parametrize(
    "options",
    [
        {"check": True, "requirements": True},
        {"check": True, "markdown": True},
        {"check": True, "upgrade": True},
        {"check": True, "base": True},
        {"requirements": True, "upgrade": True},
        {"requirements": True, "from_facts": True},
    ],
)
def test_options_of_lock_that_contradict_each_other_are_refused(
    capsys: pytest.CaptureFixture[str], options: dict[str, bool]
) -> None:
    """Checking, printing and writing are three things, and one is asked for at a time."""
    with pytest.raises(UsageError, match="contradict each other") as raised:
        printed(capsys, tasks.lock, LOCKED[0], **options)
    for name in options:
        assert f"--{name.replace('_', '-')}" in raised.value.what


def test_each_row_that_is_pushed_has_a_tag_of_its_own() -> None:
    """Its id, unless one is given; that for several rows is refused before anything is built."""
    chosen = [row for row in FAMILY if row.id in {"torch25-cu124", "torch26-cu124"}]
    assert destinations("", chosen) == ["", ""]
    where = "127.0.0.1:5000/team/torch"
    assert destinations(where, chosen) == [f"{where}:{row.id}" for row in chosen]
    assert destinations(f"{where}:mine", chosen[:1]) == [f"{where}:mine"]
    with pytest.raises(UsageError, match="one tag for 2 images"):
        destinations(f"{where}:mine", chosen)
    with pytest.raises(ImageError, match="HOST/REPOSITORY"):
        destinations("mine", chosen)


@pytest.mark.parametrize("what", ["list", "--help"])
def test_benches_are_listed(capsys: pytest.CaptureFixture[str], what: str) -> None:
    """Each with what it is about, and the options; invoke takes an option after `bench` for a bench's name."""
    told = inspect.unwrap(tasks.bench.body)(None, what, []) or capsys.readouterr().out
    listed = {line.split()[0] for line in told.splitlines() if line.startswith("  ")}
    assert listed == {*catalogue.BENCHES, "all"}
    assert all(one.title in told for one in catalogue.BENCHES.values())
    assert all(option in told for option in ("--rounds", "--estimate", "--results", "--fresh", "--json", "--target"))


@pytest.mark.parametrize("rounds", ["0", "-1", "x", "1.5"])
def test_a_bench_of_no_rounds_is_refused_before_anything(
    rounds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cache is made, and no result is written."""
    monkeypatch.setenv("TORCHKILN_HOME", str(tmp_path / "home"))
    with pytest.raises(UsageError, match=f"--rounds {rounds}: there is no figure without a round"):
        inspect.unwrap(tasks.bench.body)(None, "assemble", [], rounds=rounds, results=str(tmp_path / "results"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("", "--list"),
        ("bench", "bench list"),
        ("bench --help", "bench list --help"),
        ("bench --estimate", "bench all --estimate"),
        ("bench --target x --estimate", "bench all --target x --estimate"),
        ("bench push --rounds 1", "bench push --rounds 1"),
        ("matrix --json", "matrix --json"),
    ],
)
def test_the_launcher_names_what_is_meant_by_no_bench(typed: str, meant: str) -> None:
    """All where it is estimated, else their list; every other line stays as it was typed."""
    launcher = runpy.run_path(str(ROOT / "inv"))
    assert launcher["completed"](typed.split()) == meant.split()


@pytest.mark.parametrize("empty", ["compression", "for_"])
def test_an_option_for_a_form_is_not_empty(capsys: pytest.CaptureFixture[str], empty: str) -> None:
    """A variable that was not set is told as such: the default would be another image."""
    for task in (tasks.plan, tasks.build, tasks.load, tasks.validate, tasks.shell, tasks.verify):
        with pytest.raises(UsageError, match=r"'' is no compression|--for is empty"):
            printed(capsys, task, "torch25-cu124", **{empty: ""})


def test_the_tag_is_the_name_in_the_store() -> None:
    """In zstd it is not the row's id, and the help says so."""
    (row,) = selection.made_for(FAMILY[:1], None, "zstd")
    assert destinations("localhost/torch", [row]) == [f"localhost/torch:{row.id}-zstd3"]
    assert "-zstd3" in tasks.build.help["push"]


@pytest.mark.parametrize("given", [{"push": "me/torch"}, {"from_": "me/torch"}, {"from_": "localhost/me/torch:one"}])
def test_a_place_is_one_before_anything_is_locked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    """Additions are resolved only for a build that can begin."""
    monkeypatch.setenv("TORCHKILN_HOME", str(tmp_path / "home"))
    (tmp_path / "own.txt").write_text("six\n")
    with pytest.raises(ImageError, match=r"HOST/REPOSITORY|no tag"):
        printed(capsys, tasks.build, "torch25-cu124", extra_requirements=str(tmp_path / "own.txt"), **given)
    assert not list(tmp_path.glob("*.lock"))
