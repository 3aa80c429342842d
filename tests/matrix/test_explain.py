from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.matrix.rows import KNOWN
from torchkiln.errors import UnknownTargetError, UsageError
from torchkiln.matrix import explain, schema, words
from torchkiln.report import tables

MATRIX = schema.load(Path(__file__).parents[2] / "matrix.yaml", KNOWN)


def asked(identifier: str) -> explain.Explained:
    """What the real matrix says of an id."""
    return explain.explain(MATRIX, KNOWN, identifier)


def test_the_walk_through_is_answered() -> None:
    """Torch 2.8 with CUDA 12.4 on a 4090D is refused by its rule, and answered with a row that the matrix has."""
    found = asked("torch28-cu124-rtx4090d")
    assert (found.listed, found.refused) == (False, True)
    assert [one.rule for one in found.findings if one.severity == "error"] == ["variant-exists"]
    assert found.nearest
    assert found.nearest.id == "torch28-cu126-rtx4090d"
    assert found.offered
    assert found.offered.id == "torch28-cu126-rtx4090d"
    text = tables.explained(found)
    assert text.startswith("torch28-cu124-rtx4090d: refused; not in matrix.yaml\n")
    assert "torch 2.8.0 is built for cpu, cu126, cu128, cu129" in text
    assert "nearest in matrix.yaml: torch28-cu126-rtx4090d (cu126)" in text


def test_what_is_in_the_matrix_is_explained_as_it_stands() -> None:
    """A row that can be built is not refused, needs no other, and its notes say what is peculiar."""
    found = asked("torch28-cu126-rtx4090d")
    assert (found.listed, found.refused, found.nearest, found.offered) == (True, False, None, None)
    assert "minor-version compatibility" in tables.explained(found)
    assert "refused" not in tables.explained(found)


@pytest.mark.parametrize(
    ("identifier", "rules", "nearest"),
    [
        ("torch25-cu124-mi300", ["gpu-arch"], "torch25-rocm62-mi300"),
        ("torch25-rocm62-mi350", ["gpu-arch", "gpu-toolkit"], "torch210-rocm70-mi350"),
        ("torch28-cu126-rtx5090", ["gpu-arch"], "torch28-cu128-rtx5090"),
        ("torch29-cu130-rtx4090d", ["driver"], "torch29-cu129-rtx4090d"),
        ("torch27-cu128-v100", ["gpu-arch"], "torch27-cu126-v100"),
        ("torch211-cu128-v100", ["gpu-arch"], "torch211-cu126-v100"),
        ("torch24-cu121-trixie", ["python-range"], "torch24-cu121"),
        ("torch215-cu132-jammy", ["python-range"], "torch214-cu132-jammy"),
        ("torch28-cu128-aarch64", ["machine"], "torch28-cu128"),
        ("torch28-cu118", ["variant-exists"], "torch28-cu126"),
        ("torch25-cu134", ["variant-exists"], "torch25-cu124"),
    ],
)
def test_a_refused_row_is_answered_with_the_one_that_changes_least(
    identifier: str, rules: list[str], nearest: str
) -> None:
    """GPU and driver stay; the accelerator changes before the release, and that before the base."""
    found = asked(identifier)
    assert [one.rule for one in found.findings if one.severity == "error"] == rules
    assert found.nearest
    assert found.nearest.id == nearest
    assert not asked(nearest).refused


@pytest.mark.parametrize(
    ("identifier", "torch", "vision", "audio"),
    [
        ("torch24-cu121", "2.4.1", "0.19.1", "2.4.1"),
        ("torch240-cu121", "2.4.0", "0.19.0", "2.4.0"),
        ("torch250-cu124", "2.5.0", "0.20.0", "2.5.0"),
        ("torch25-cu124-t4", "2.5.1", "0.20.1", "2.5.1"),
        ("torch21-cu121", "2.1.2", "0.16.2", "2.1.2"),
        ("torch211-cu130", "2.11.0", "0.26.0", "2.11.0"),
        ("torch212-cu130", "2.12.1", "0.27.1", ""),
        ("torch2120-cu130", "2.12.0", "0.27.0", ""),
    ],
)
def test_a_release_that_only_the_facts_know_has_its_own_trio(
    identifier: str, torch: str, vision: str, audio: str
) -> None:
    """A minor is its last patch, or exactly one is named; 2.11 is not 2.1.1. Companions are bounded as it needs."""
    found = asked(identifier)
    release = found.target.release
    assert (release.torch, release.torchvision, release.torchaudio) == (torch, vision, audio)
    assert not found.refused, found.findings
    assert found.target.id == identifier


@pytest.mark.parametrize(
    ("identifier", "offered", "said"),
    [
        ("torch28-cu124-h100", "torch28-cu126-hopper", "for hopper"),
        ("torch25-rocm62-mi300x", "torch25-rocm62-mi300", "for mi300"),
        ("torch26-cu124-t4", "torch26-cu124", "for any GPU"),
        ("torch24-cu124-rtx4090", "torch25-cu124-rtx4090", "torch 2.5.1"),
    ],
)
def test_a_card_is_offered_the_row_of_its_kind(identifier: str, offered: str, said: str) -> None:
    """An H100 is a Hopper: a row for the kind comes before a row for any GPU."""
    found = asked(identifier)
    assert found.offered
    assert found.offered.id == offered
    assert f"nearest in matrix.yaml: {offered} (" in tables.explained(found)
    assert said in tables.explained(found)


def test_gpus_of_the_facts_are_known() -> None:
    """A card needs no entry in the matrix to be asked about; old ones say what does not apply."""
    found = asked("torch28-cu126-p100")
    assert not found.refused
    assert [one.rule for one in found.findings] == ["compile-applies", "bfloat16"]
    assert found.offered
    assert found.offered.id == "torch28-cu126"
    assert asked("torch25-cu118-h100").target.gpu.arch == "sm_90"
    assert asked("torch25-rocm62-mi300x").target.gpu.arch == "gfx942"


@pytest.mark.parametrize(
    ("wrong", "told", "remedy"),
    [
        ("torch28-cu214", "no accelerator is called 'cu214'", "torch28-cu129"),
        ("torch216-cu132", "no release is called 'torch216'", "torch215-cu132"),
        ("torch28-rocm64-gfx90a", "names of its GPUs (mi250, mi210)", "torch28-rocm64-mi250"),
        ("torch28-rocm64-gfx1102", "'gfx1102' is an architecture", "torch28-rocm64-rx7600"),
        ("torch28-cu124-gfx942", "'gfx942' is an architecture", "torch28-rocm64-mi300"),
        ("cu126-torch216-hopper", "no release is called 'torch216'", "torch26-cu126-hopper"),
        ("torch28-cu126-hoper", "is called 'hoper'", "torch28-cu126-hopper"),
        ("torch28-cu126-jamy", "is called 'jamy'", "torch28-cu126-jammy"),
        (
            "toch28-cu216-hoper",
            "no release is called 'toch28'; no accelerator is called 'cu216'; no GPU",
            "torch28-cu126",
        ),
        ("torch28-cu126-with-mine", "no extra is called 'mine' (there are none)", "torch28-cu126"),
        ("torch28-cu126-zzz", "is called 'zzz'", "torch28-cu126"),
        ("torch213-foo", "no accelerator is called 'foo'", "torch213-cpu"),
        ("foo-bar", "no release is called 'foo'; no accelerator is called 'bar'", "an id is <release>"),
    ],
)
def test_every_unknown_part_is_named_with_the_nearest(wrong: str, told: str, remedy: str) -> None:
    """A typo is answered with the id that was probably meant, whichever parts are wrong."""
    with pytest.raises(UnknownTargetError) as raised:
        asked(wrong)
    assert told in raised.value.what
    assert raised.value.remedy.startswith(remedy)
    assert raised.value.remedy == words.FORM or not asked(raised.value.remedy).refused


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ("torch25", "an id is <release>-<accelerator>"),
        ("", "an id is <release>-<accelerator>"),
        ("torch2[58]-cu*", "an id is <release>-<accelerator>"),
        ("torch25-cu124-", "an id is <release>-<accelerator>"),
        ("torch2.5-cu124", "torch25-cu124"),
        ("torch2.8.0-CU124-hopper", "torch28-cu126-hopper"),
        ("torch2.1.0-cu121", "torch21-cu121"),
        ("torch2.10-cu130", "torch210-cu130"),
        ("TORCH28-cu126", "torch28-cu126"),
        ("torch28-cu126-x86_64", "torch28-cu126"),
        ("torch28-cu126-sm_90", "torch28-cu126-hopper"),
        ("torch28-rtx4090-cu126", "torch28-cu126-rtx4090"),
        ("torch28-rtx4090-cu124", "torch28-cu126-rtx4090"),
        ("torch29-rtx4090d-cu130", "torch29-cu129-rtx4090d"),
        ("cu126-torch28", "torch28-cu126"),
        ("torch28-rtx4090", "an id is <release>-<accelerator>"),
        ("torch28-cu126-cu128", "an id is <release>-<accelerator>"),
        ("torch25-cu124-jammy-a100", "torch25-cu124-a100-jammy"),
        ("torch25-cu124-a100-hopper", "an id is <release>-<accelerator>"),
    ],
)
def test_what_is_no_id_is_a_mistake_of_usage(wrong: str, remedy: str) -> None:
    """Globs, missing parts, two of a kind: each gets the form; another order or spelling an id that works."""
    with pytest.raises(UsageError) as raised:
        asked(wrong)
    assert raised.value.remedy.startswith(remedy)
    assert raised.value.remedy == words.FORM or not asked(raised.value.remedy).refused


def test_nonsense_is_answered_in_a_few_lines() -> None:
    """With what is wrong and where all rows are listed, not with every word that there is."""
    for nonsense in ("foo-bar", "torch25-cu124-foo", "nonsense-nonsense-nonsense"):
        with pytest.raises(UnknownTargetError) as raised:
            asked(nonsense)
        assert "./inv matrix lists" in str(raised.value)
        assert len(str(raised.value)) < 400


def test_what_an_id_lacks_is_told() -> None:
    """A release or an accelerator alone is half an id, not nonsense."""
    for half, lacks in (("torch25", "no accelerator"), ("cpu", "no release"), ("a100", "no release")):
        with pytest.raises(UsageError, match=f"^{half} names {lacks}"):
            asked(half)


def test_another_spelling_is_told_by_what_is_wrong_with_it() -> None:
    """The machine's own name is the likeliest."""
    for wrong, why in (("torch28-cu126-x86_64", "spelt x8664, and may be left out"), ("Torch28-cu126", "lower case")):
        with pytest.raises(UsageError, match=why):
            asked(wrong)


def test_the_default_parts_may_be_named() -> None:
    """Who writes out what ids leave out asks about the same row."""
    assert asked("torch25-cu124-generic-runtime-bookworm").target.id == "torch25-cu124"
    assert asked("torch25-cu124-generic-runtime-bookworm").listed


def test_an_excluded_row_says_where(tmp_path: Path) -> None:
    """What a product leaves out is explained by the pattern, even if nothing else is wrong with it."""
    text = Path(__file__).with_name("small.yaml").read_text()
    text = text.replace(
        "accelerators: [cu124], bases: [bookworm]}", "accelerators: [cu124], bases: [bookworm], exclude: ['torch26-*']}"
    )
    path = tmp_path / "matrix.yaml"
    path.write_text(text)
    found = explain.explain(schema.load(path, KNOWN), KNOWN, "torch26-cu124")
    assert (found.listed, found.refused) == (False, False)
    assert found.excluded == ("targets[0].exclude[0]: torch26-*",)
    assert "excluded by targets[0].exclude[0]: torch26-*" in tables.explained(found)
    assert found.offered
    assert found.offered.id == "torch25-cu124"


def test_additions_of_the_matrix_can_be_asked_for_on_any_row(tmp_path: Path) -> None:
    """`-with-mine` names a requirements file of some product; on another release it is the same additions."""
    (tmp_path / "mine.txt").write_text("einops\n")
    text = Path(__file__).with_name("small.yaml").read_text()
    text += "  - {releases: [torch25], accelerators: [cu124], bases: [bookworm], extra: mine.txt}\n"
    path = tmp_path / "matrix.yaml"
    path.write_text(text)
    family = schema.load(path, KNOWN)
    assert explain.explain(family, KNOWN, "torch25-cu124-with-mine").listed
    found = explain.explain(family, KNOWN, "torch26-cu126-a100-with-mine")
    assert found.target.extra == family.products[-1].extra
    assert (found.target.id, found.refused) == ("torch26-cu126-a100-with-mine", False)
    assert found.offered
    assert found.offered.id == "torch26-cu124"
    with pytest.raises(UnknownTargetError, match="no extra is called 'mime'") as raised:
        explain.explain(family, KNOWN, "torch25-cu124-with-mime")
    assert raised.value.remedy == "torch25-cu124-with-mine"


@pytest.mark.parametrize(
    ("identifier", "lines"),
    [
        ("torch28-cu128-l40s-noble", ()),
        ("torch28-cu128-v100", ("gpus:", "  v100: {arch: sm_70, run_options: [--shm-size=2g]}")),
        (
            "torch29-cu130",
            (
                "releases:",
                "  torch29: {torch: 2.9.1, torchvision: 0.24.1, torchaudio: 2.9.1, companions: ['numpy>=2', ",
            ),
        ),
        ("torch24-cu121-t4", ("releases:", "  torch24:", "gpus:", "  t4:")),
        ("torch212-rocm72-mi210", ("releases:", "  torch212:", "accelerators:", "  rocm72:", "gpus:", "  mi210:")),
    ],
)
def test_what_has_to_be_declared_can_be_pasted(identifier: str, lines: tuple[str, ...], tmp_path: Path) -> None:
    """Parts first, then a product: a matrix with these lines has the row, as it was asked about, and lints it alike."""
    found = asked(identifier)
    assert (found.refused, found.listed, len(found.declare)) == (False, False, len(lines))
    assert all(own.startswith(line) for own, line in zip(found.declare, lines, strict=True))
    text = (Path(__file__).parents[2] / "matrix.yaml").read_text()
    pasted = [*found.declare, *found.product]
    assert all(f"  {line}\n" in tables.explained(found) for line in pasted)
    for section, line in zip(pasted[::2], pasted[1::2], strict=True):
        text, count = re.subn(rf"^{section}.*$", rf"\g<0>\n{line}", text, flags=re.MULTILINE)
        assert count == 1
    path = tmp_path / "matrix.yaml"
    path.write_text(text)
    again = explain.explain(schema.load(path, KNOWN), KNOWN, identifier)
    assert (again.listed, again.findings) == (True, found.findings)
    assert again.target.release == found.target.release
    assert again.target.accelerator == found.target.accelerator
    assert again.target.gpu.arch == found.target.gpu.arch


def test_a_warning_is_not_nothing() -> None:
    """A row that may be built says so, and with how much; only one without warnings has nothing wrong with it."""
    assert tables.explained(asked("torch25-cu124-trixie")).startswith(
        "torch25-cu124-trixie: it may be built, with a warning; not in matrix.yaml\n"
    )
    assert tables.explained(asked("torch25-cu124")).startswith("torch25-cu124: nothing is wrong with it; in ")


def test_json_has_what_people_read() -> None:
    """Programs get the row, its findings, and the ids of what to use instead."""
    told = json.loads(json.dumps(explain.to_json(asked("torch28-cu124-rtx4090d"))))
    assert told["id"] == "torch28-cu124-rtx4090d"
    assert (told["listed"], told["refused"], told["excluded"]) == (False, True, [])
    assert (told["nearest"], told["changes"], told["offered"]) == (
        "torch28-cu126-rtx4090d",
        ["cu126"],
        "torch28-cu126-rtx4090d",
    )
    assert told["findings"][0]["rule"] == "variant-exists"
