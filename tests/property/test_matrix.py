"""Whatever a row says, lint answers: by rules that exist, and with a row that is itself free of errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.matrix.rows import KNOWN, PACKAGES, changed
from torchkiln.errors import TorchkilnError
from torchkiln.matrix import compat, facts, parts, rules, schema
from torchkiln.matrix.explain import Explained, explain, to_json
from torchkiln.matrix.mend import mended
from torchkiln.matrix.nearest import legal
from torchkiln.matrix.target import Extra, Target
from torchkiln.matrix.words import FORM
from torchkiln.report import tables

MATRIX = schema.load(Path(__file__).parents[2] / "matrix.yaml", KNOWN)
PROFILED = sorted({row.target for row in KNOWN.gpus})
TORCHES = [*(row.torch for row in KNOWN.releases), "1.13.1", "2.5.9", "2.99.0", "3.0"]
VARIANTS = [*sorted(facts.every_variant(KNOWN) - {"xpu"}), "cu102", "cu127", "rocm9.9"]
VERSION = st.builds("{}.{}.{}".format, st.integers(0, 700), st.integers(0, 130), st.integers(0, 20))
REQUIREMENT = st.sampled_from(
    [
        "numpy>=2",
        "numpy<2",
        "numpy",
        "setuptools>=70",
        "setuptools",
        "pip",
        "triton",
        "triton==3.1.0",
        "torch==2.6",
        "torchaudio>=2",
        "einops",
        "pytorch-triton-rocm",
        "triton-xpu",
        "nvidia-cuda-nvcc-cu12==12.1.105",
        "nvidia-cublas-cu11",
        "cuda-toolkit[nvcc]==13.0.2",
        "Torch_Vision",
        "NumPy~=1.26",
    ]
)
PACKAGE = st.sampled_from([*PACKAGES, "build-essential", "libcuda1", "cuda-compat-12-4", "cuda-toolkit-12-1", "git"])
OPTION = st.sampled_from(
    [
        "--gpus=all",
        "--device=/dev/kfd",
        "--device=/dev/dri",
        "--shm-size=2g",
        "--ipc=host",
        "--group-add=video",
        "--env=HSA_OVERRIDE_GFX_VERSION=9.0.0",
    ]
)
ARCH = st.sampled_from(["", *PROFILED, "sm_37", "sm_90a", "sm_121", "sm_130", "compute_90", "gfx90c", "gfx9999", "odd"])


def lists(words: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Some of the words, with spaces between."""
    return st.lists(words, max_size=5, unique=True).map(" ".join)


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "torchvision": st.sampled_from(["", "0.16.0", "0.20.1", "0.29.2", "9.9"]),
        "torchaudio": st.sampled_from(["", "2.5.1", "2.11.0", "2.11.1", "9.9"]),
        "arch": ARCH,
        "driver": st.one_of(st.just(""), VERSION, st.just("550.90.07")),
        "python": st.sampled_from(["3.8", "3.10", "3.11", "3.13", "3.15", "3.99"]),
        "glibc": st.sampled_from(["2.5", "2.17", "2.27", "2.36", "2.50"]),
        "suite": st.sampled_from([*(row.suite for row in KNOWN.suites), "sid", ""]),
        "companions": lists(REQUIREMENT),
        "requirements": lists(REQUIREMENT),
        "packages": lists(PACKAGE),
        "options": lists(OPTION),
        "machine": st.sampled_from(["x86_64", "aarch64", "riscv64"]),
    },
)


@st.composite
def rows(draw: st.DrawFn) -> Target:
    """A row of the matrix with anything in it changed."""
    plain = draw(st.sampled_from(MATRIX.targets))
    if draw(st.booleans()):
        stated = parts.accelerator(draw(st.sampled_from(VARIANTS)))
        assert stated
        release = parts.release(draw(st.sampled_from(TORCHES)), KNOWN, plain.release)
        plain = replace(plain, release=release, accelerator=facts.complete(KNOWN, stated, release.torch))
    row = changed(plain, **draw(CHANGES))
    if added := draw(lists(REQUIREMENT)):
        row = replace(row, extra=Extra(id="mine", requirements=tuple(added.split()), file=Path("mine.txt")))
    return row


@given(rows())
def test_any_row_gets_an_answer(row: Target) -> None:
    """Lint never raises; a finding has rule, message and evidence; an error offers a row that has none."""
    for finding in compat.lint(row, KNOWN, MATRIX):
        assert finding.rule in rules.NAMES
        assert finding.message
        assert finding.evidence
        if finding.severity == "error":
            assert finding.nearest or row.gpu.arch not in PROFILED
            hold_offer(row, finding.row)
        else:
            assert finding.row is None


def hold_offer(row: Target, offered: Target | None) -> None:
    """What is offered works, on the same GPU; there is something for every GPU that the facts have a profile of."""
    if offered is None:
        assert row.gpu.arch not in {"", *PROFILED}
        return
    assert legal(offered, KNOWN)
    assert all(finding.severity != "error" for finding in compat.lint(offered, KNOWN, MATRIX))
    assert (offered.gpu.id, offered.gpu.arch) == (row.gpu.id, row.gpu.arch)
    assert offered.gpu.driver == row.gpu.driver or facts.older(row.gpu.driver, offered.gpu.driver)
    assert offered != row
    assert compat.told(row, offered)


@given(rows())
def test_mending_is_done_once_and_changes_no_choice(row: Target) -> None:
    """What has one answer is put right in one go; release, accelerator, GPU and base stay the row's own."""
    once = mended(row, KNOWN)
    assert mended(once, KNOWN) == once
    assert (once.release.torch, once.accelerator, once.base.id) == (row.release.torch, row.accelerator, row.base.id)
    assert (once.gpu.id, once.gpu.arch, once.gpu.driver) == (row.gpu.id, row.gpu.arch, row.gpu.driver)
    before = {finding.rule for finding in rules.check(row, KNOWN) if finding.severity != "note"}
    after = {finding.rule for finding in rules.check(once, KNOWN) if finding.severity != "note"}
    assert after <= before | {"python-range", "glibc-floor", "triton-python"}  # those of the Python that the suite has


RELEASE = st.sampled_from(
    [*MATRIX.releases, *(f"torch{row.torch.replace('.', '')}" for row in KNOWN.releases), "torch99", "torch"]
)
ACCELERATOR = st.sampled_from([*MATRIX.accelerators, "cu117", "cu134", "rocm70", "cu12", ""])
REST = st.sampled_from(
    [
        *MATRIX.gpus,
        *MATRIX.flavours,
        *MATRIX.bases,
        *(row.id for row in KNOWN.gpus),
        "aarch64",
        "x8664",
        "zzz",
        "gfx90a",
        "sm_90",
    ]
)
IDS = st.one_of(
    st.builds(lambda *words: "-".join(words), RELEASE, ACCELERATOR),
    st.builds(lambda *words: "-".join(words), RELEASE, ACCELERATOR, REST),
    st.builds(lambda *words: "-".join(words), RELEASE, ACCELERATOR, REST, REST),
    st.text(max_size=30),
)


def answer(identifier: str) -> Explained | TorchkilnError:
    """What explain returns or raises."""
    try:
        return explain(MATRIX, KNOWN, identifier)
    except TorchkilnError as error:
        return error


@given(IDS)
def test_any_id_is_explained_or_refused_as_an_id(identifier: str) -> None:
    """What is offered can itself be asked about, by its id, and is not refused."""
    found = answer(identifier)
    if isinstance(found, TorchkilnError):
        assert found.exit_code in {2, 4}
        assert found.remedy == FORM or not explain(MATRIX, KNOWN, found.remedy).refused
        return
    assert found.refused == (found.nearest is not None) or found.target.gpu.arch not in {"", *PROFILED}
    assert tables.explained(found)
    assert to_json(found)["refused"] is found.refused
    assert not found.offered or found.offered in MATRIX.targets
    for row in (found.nearest, found.offered):
        if row and row.gpu.driver == found.target.gpu.driver:
            assert not explain(MATRIX, KNOWN, row.id).refused


@given(st.sampled_from(MATRIX.targets))
def test_an_id_of_the_matrix_is_that_row(row: Target) -> None:
    """Reading an id and writing it again changes nothing."""
    found = explain(MATRIX, KNOWN, row.id)
    assert (found.target, found.listed) == (row, True)
