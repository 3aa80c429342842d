"""Rows that share a file: what one adds is no business of the others."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uv
from hypothesis import given
from hypothesis import strategies as st

from tests import toys
from torchkiln import process
from torchkiln.errors import LockError, StaleLockError
from torchkiln.lock import basefit, baselock, fit, lockfile, rows, sections
from torchkiln.lock.lockfile import Inputs, Pin
from torchkiln.lock.sections import LockFile
from torchkiln.matrix import schema
from torchkiln.matrix.target import Extra, Flavour

if TYPE_CHECKING:
    from torchkiln.lock.lockfile import Lock

SMALL = {row.id: row for row in schema.load(Path(__file__).parents[1] / "matrix" / "small.yaml").targets}
FIRST = next(iter(SMALL.values()))
ROW = replace(FIRST, release=replace(FIRST.release, companions=("numpy<2.3",)))
DEVEL = replace(ROW, flavour=Flavour(id="devel", requirements=("cmake", "ninja<2")))
SERVE = replace(ROW, flavour=Flavour(id="serve", requirements=("web",)))


def pin(name: str, version: str = "1") -> Pin:
    """A wheel that exists on paper."""
    return Pin(name=name, version=version, sha256="0" * 64, filename=f"{name}-{version}-py3-none-any.whl", size=1)


def trio() -> list[Pin]:
    """What the row itself pins."""
    release = ROW.release
    stated = {"torch": release.torch, "torchvision": release.torchvision, "torchaudio": release.torchaudio}
    return [pin(name, version) for name, version in stated.items() if version]


COMMON = lockfile.make(fit.asked(ROW), [*trio(), pin("numpy", "2.2.6")], "uv 1")


def section(row_requirements: tuple[str, ...], *pins: Pin, above: Lock = COMMON) -> Lock:
    """What an addition pins."""
    return lockfile.make(fit.added(ROW, row_requirements, above.pins), pins, "uv 1")


FILE = LockFile(
    common=COMMON,
    sections={
        "devel": section(DEVEL.flavour.requirements, pin("cmake"), pin("ninja")),
        "serve": section(SERVE.flavour.requirements, pin("web")),
    },
)


def test_a_file_survives_its_text_form() -> None:
    """parse(render(file)) is the file, section by section."""
    assert sections.parse(sections.render(FILE)) == FILE


names = st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,8}){0,2}", fullmatch=True)
words = st.from_regex(r"[a-z0-9<>=.,+\[\]-]{1,20}", fullmatch=True)
inputs = st.builds(
    Inputs,
    requirements=st.lists(words, max_size=4).map(tuple),
    python=words,
    platform=words,
    index=words,
    constraints=st.just("") | words,
)
pins = st.builds(
    Pin,
    name=names,
    version=st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}(\+[a-z0-9]{1,6})?", fullmatch=True),
    sha256=st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    filename=st.from_regex(r"[A-Za-z0-9._+-]{1,30}\.whl", fullmatch=True),
    size=st.none() | st.integers(min_value=0, max_value=10**12),
)


@st.composite
def files(draw: st.DrawFn) -> LockFile:
    """Lock files of any form: with and without a shared part, with any number of sections."""
    pool = draw(st.lists(pins, max_size=9, unique_by=lambda pin: pin.name))
    parts = draw(st.lists(names, max_size=3, unique=True))
    sources = draw(st.dictionaries(names, words, max_size=2))
    share = {name: pool[place :: len(parts) + 1] for place, name in enumerate(["", *parts])}
    locks = {name: lockfile.make(draw(inputs), own, draw(words), sources.items()) for name, own in share.items()}
    common = locks.pop("")
    return LockFile(common=common if draw(st.booleans()) else None, sections=locks)


@given(files())
def test_any_file_survives_its_text_form(file: LockFile) -> None:
    """Whatever its parts hold; and so does each part by itself."""
    assert sections.parse(sections.render(file)) == file
    for name, lock in file.parts.items():
        assert lockfile.parse(lockfile.render(lock, name)) == lock


def test_a_row_uses_what_rows_share_and_its_own_section() -> None:
    """Other flavours' wheels are not in it; a row that adds nothing uses the shared part as it stands."""
    assert fit.row(ROW, FILE) == COMMON
    assert [pin.name for pin in fit.row(DEVEL, FILE).pins] == sorted(
        [*(pin.name for pin in COMMON.pins), "cmake", "ninja"]
    )
    assert fit.row(DEVEL, FILE).asked.requirements == (*fit.asked(ROW).requirements, "cmake", "ninja<2")


def test_a_digest_covers_exactly_what_a_row_uses() -> None:
    """A section that is added, changed or removed changes no image but those of its flavour."""
    less = replace(FILE, sections={"devel": FILE.sections["devel"]})
    other = section(SERVE.flavour.requirements, pin("web", "2"))
    more = replace(FILE, sections={**FILE.sections, "serve": other})
    for row in (ROW, DEVEL):
        assert len({fit.row(row, file).digest for file in (FILE, less, more)}) == 1
    assert len({fit.row(SERVE, file).digest for file in (FILE, more)}) == 2
    assert len({fit.row(row, FILE).digest for row in (ROW, DEVEL, SERVE)}) == 3
    assert fit.row(ROW, FILE).digest == lockfile.parse(lockfile.render(COMMON)).digest


def test_a_section_is_stale_by_itself() -> None:
    """Another requirement of one flavour leaves the shared part and the other sections fresh."""
    changed = replace(DEVEL, flavour=replace(DEVEL.flavour, requirements=("cmake", "ninja<3")))
    with pytest.raises(StaleLockError, match=r"section devel of .* no longer asks for ninja<2; now asks for ninja<3"):
        fit.row(changed, FILE)
    assert fit.row(ROW, FILE)
    assert fit.row(SERVE, FILE)


def test_a_section_under_other_pins_is_stale() -> None:
    """A section was resolved under the shared pins, and says so when they moved."""
    moved = lockfile.make(fit.asked(ROW), [*trio(), pin("numpy", "2.2.7")], "uv 1")
    with pytest.raises(StaleLockError, match="the pins that it was resolved on top of changed"):
        fit.row(DEVEL, replace(FILE, common=moved))


def test_the_order_of_requirements_does_not_matter() -> None:
    """What is asked for is a set."""
    turned = replace(DEVEL, flavour=replace(DEVEL.flavour, requirements=("ninja<2", "cmake")))
    assert fit.row(turned, FILE) == fit.row(DEVEL, FILE)


def test_a_flavour_without_a_section_is_unlocked() -> None:
    """The error says which command to run."""
    with pytest.raises(LockError) as raised:
        fit.row(DEVEL, LockFile(common=COMMON))
    assert "is unlocked: nobody has locked devel for it" in raised.value.what
    assert f"./inv lock --target {DEVEL.id}" in raised.value.remedy


def test_where_a_row_can_be_locked_is_said() -> None:
    """A row on the PyTorch index names that index and the variable for a mirror; a default row names neither."""
    suffixed = replace(ROW, accelerator=replace(ROW.accelerator, by_default=False))
    assert "download.pytorch.org" in fit.unlocked(suffixed, "").remedy
    assert "TORCHKILN_PYTORCH_INDEX" in fit.unlocked(suffixed, "").remedy
    default = replace(ROW, accelerator=replace(ROW.accelerator, by_default=True))
    assert "pytorch.org" not in fit.unlocked(default, "").remedy


def test_a_section_that_pins_what_is_above_it_is_refused() -> None:
    """A package has one version in an image."""
    twice = replace(FILE, sections={"devel": section(DEVEL.flavour.requirements, pin("numpy", "2.3"))})
    with pytest.raises(LockError, match="section devel pins numpy, which is pinned above it"):
        sections.parse(sections.render(twice))
    with pytest.raises(LockError, match="numpy is pinned twice"):
        fit.row(DEVEL, twice)


def test_all_problems_of_all_parts_are_told() -> None:
    """A bad line, a section that is there twice."""
    text = sections.render(FILE) + "rubbish\n\n# section: devel\n# inputs: x\n"
    with pytest.raises(LockError) as raised:
        sections.parse(text, where="x.txt")
    assert "section serve: line" in raised.value.what
    assert "section devel is there twice" in raised.value.what
    assert raised.value.where == "x.txt"


def test_additions_of_a_user_lie_beside_their_list(tmp_path: Path) -> None:
    """They are held against the row's own pins, flavour included, and the row's own file knows nothing of them."""
    extra = Extra(id="serve", requirements=("web",), file=tmp_path / "serve.txt")
    plain, row = DEVEL, replace(DEVEL, extra=extra)
    assert fit.file_of(row, "devel-with-serve", Path("locks")) == tmp_path / f"serve.{row.lock_name}"
    assert fit.file_of(row, "devel", Path("locks")) == Path("locks") / row.lock_name
    own = fit.row(plain, FILE)
    beside = LockFile(sections={"devel-with-serve": section(extra.requirements, pin("web"), above=own)})
    lock = fit.row(row, FILE, beside)
    assert [[pin.name for pin in part] for part in lock.parts][1:] == [["cmake", "ninja"], ["web"]]
    with pytest.raises(LockError, match="unlocked: nobody has locked devel-with-serve"):
        fit.row(row, FILE)
    with pytest.raises(StaleLockError, match="now asks for web<2"):
        fit.row(replace(row, extra=replace(extra, requirements=("web<2",))), FILE, beside)
    moved = LockFile(sections={"devel-with-serve": section(extra.requirements, pin("web"))})
    with pytest.raises(StaleLockError, match="the pins that it was resolved on top of"):
        fit.row(row, FILE, moved)


def test_hashes_that_nobody_confirmed_are_marked() -> None:
    """Whose word a hash is stands in the heading, and survives."""
    said = {"torch": "facts.yaml, a single source, unconfirmed: somebody", "numpy": "facts.yaml, 2 sources that agree"}
    lock = lockfile.make(COMMON.asked, COMMON.pins, "uv 1", said.items())
    assert "# hash of torch: facts.yaml, a single source, unconfirmed: somebody\n" in lockfile.render(lock)
    assert lockfile.parse(lockfile.render(lock)) == lock
    assert lock.unconfirmed == ("torch",)
    assert fit.row(DEVEL, replace(FILE, common=lock)).unconfirmed == ("torch",)


def write(folder: Path, file: LockFile = FILE, python: str = ROW.base.python) -> None:
    """What a checkout would hold."""
    folder.joinpath(ROW.lock_name).write_text(sections.render(file))
    asked = basefit.asked(ROW.base, ROW.arch)
    listed = baselock.make([(f"libpython{python}-minimal", f"{python}.2-6")], asked)
    folder.joinpath(ROW.base.lock_name).write_text(baselock.render(listed))


def test_the_state_of_a_row_is_told_by_its_files(tmp_path: Path) -> None:
    """Locked, unlocked for want of a file, a section or a package list, and stale."""
    assert rows.state(tmp_path, ROW) == "unlocked"
    write(tmp_path, LockFile(common=COMMON))
    assert rows.state(tmp_path, ROW) == "locked"
    assert rows.state(tmp_path, DEVEL) == "unlocked"
    newer = replace(ROW, release=replace(ROW.release, companions=("numpy>=2",)))
    assert rows.state(tmp_path, newer) == "stale"
    more = replace(ROW, base=replace(ROW.base, packages=(*ROW.base.packages, "curl")))
    assert rows.state(tmp_path, more) == "stale"
    (tmp_path / ROW.base.lock_name).unlink()
    assert rows.state(tmp_path, ROW) == "unlocked"


def test_a_package_list_of_another_python_is_refused(tmp_path: Path) -> None:
    """What the base holds must be what the row says."""
    write(tmp_path, python="3.9")
    with pytest.raises(LockError, match=r"lists Python 3\.9\.2, and bookworm has 3\.11"):
        rows.packages(tmp_path, ROW)


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_pip_and_uv_install_from_a_file_with_sections(tool: str, tmp_path: Path) -> None:
    """A section is a few more lines of the requirements file."""
    made = [toys.pin(toys.make_wheel(tmp_path, name)) for name in ("one", "two")]
    first = lockfile.make(Inputs(requirements=("one",), python="3.11"), made[:1], "uv 1")
    second = lockfile.make(Inputs(requirements=("two",), python="3.11"), made[1:], "uv 1")
    lock = tmp_path / "lock.txt"
    lock.write_text(sections.render(LockFile(common=first, sections={"devel": second})))
    program = {"pip": [sys.executable, "-m", "pip"], "uv": [uv.find_uv_bin(), "pip"]}[tool]
    options = ["--no-deps", "--no-index", "--require-hashes", "--find-links", str(tmp_path)]
    settings = {"UV_NO_CACHE": "1", "PIP_NO_CACHE_DIR": "1", "UV_PYTHON": sys.executable}
    command = [*program, "install", *options, "--target", str(tmp_path / "site"), "-r", str(lock)]
    done = process.run(command, env={**os.environ, **settings})
    assert done.returncode == 0, done.stderr.decode()
    assert {"one", "two"} <= {path.name for path in (tmp_path / "site").iterdir()}
