from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.matrix.rows import KNOWN
from torchkiln.errors import MatrixError
from torchkiln.lock import fit
from torchkiln.matrix import compat, schema

ROOT = Path(__file__).parents[2]
MATRIX = Path(__file__).with_name("small.yaml").read_text()


def load(tmp_path: Path, text: str) -> schema.Matrix:
    """Read a changed matrix."""
    path = tmp_path / "matrix.yaml"
    path.write_text(text)
    return schema.load(path)


def edited(old: str, new: str) -> str:
    """A small matrix with one thing changed."""
    assert old in MATRIX
    return MATRIX.replace(old, new, 1)


def test_the_rows_of_this_repository() -> None:
    """The rows that READMEs promise are there."""
    targets = {target.id: target for target in schema.load(ROOT / "matrix.yaml").targets}
    big, small = targets["torch25-cu124"].release, targets["torch213-cpu"].release
    assert (big.torch, big.torchvision, big.torchaudio) == ("2.5.1", "0.20.1", "2.5.1")
    assert (small.torch, small.torchvision, small.torchaudio) == ("2.13.0", "", "")


def test_accelerators_are_completed_from_the_facts() -> None:
    """Drivers, architectures and the default build are facts of a release, not statements of the matrix."""
    row = schema.load(Path(__file__).with_name("small.yaml")).targets[0].accelerator
    assert (row.driver_floor, row.driver_full) == ("525.60.13", "550.54.15")
    assert row.archs == ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
    assert row.by_default


def test_run_options_are_those_of_accelerator_and_gpu() -> None:
    """A CUDA row asks for GPUs, a CPU row does not; both ask for shared memory."""
    options = {target.id: target.gpu.run_options for target in schema.load(ROOT / "matrix.yaml").targets}
    assert options["torch25-cu124"] == ("--gpus=all", "--shm-size=2g")
    assert options["torch213-cpu"] == ("--shm-size=2g",)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("    suite: bookworm", "    suit: bookworm", "bases.bookworm.suit: unknown key; nearest: suite"),
        ("    suite: bookworm\n", "", "bases.bookworm.suite: is missing"),
        ("flavours:", "flavors:", "flavors: unknown key; nearest: flavours"),
        ("kind: debian", "kind: debain", "bases.bookworm.kind: 'debain' is not known; nearest: debian"),
        ("version: '12.4'", "version: 12.4", "accelerators.cu124.version: 12.4 is a number to YAML"),
        ("version: '12.4'", "version: 12.10", "accelerators.cu124.version: 12.10 is a number to YAML"),
        ("version: '12.4'", "version: 12", "accelerators.cu124.version: 12 is a number to YAML"),
        ("torch: 2.5.1", "torch: 2.5", "releases.torch25.torch: 2.5 is a number to YAML"),
        ("version: '12.4'", "version: 12:40", "accelerators.cu124.version: '12:40' is not a version"),
        ("version: '12.4'", "version: '12.40'", "accelerators.cu124: cuda 12.40 is called 'cu1240', not 'cu124'"),
        ("version: '12.4'", "version: '12.1'", "accelerators.cu124: cuda 12.1 is called 'cu121', not 'cu124'"),
        (
            "cu124: {kind: cuda, version: '12.4'",
            "cu1240: {kind: cuda, version: '12.40'",
            "accelerators.cu1240: no torch is built for 'cu1240'; nearest: cu124",
        ),
        ("releases: [torch25,", "releases: [torch52,", "targets[0].releases[0]: 'torch52' is not declared; nearest"),
        (
            "bases: [bookworm]}",
            "bases: [bokworm]}",
            "targets[0].bases[0]: 'bokworm' is not declared; nearest: bookworm",
        ),
        (
            "[torch28], acc",
            "[torch28], gpus: [h100], acc",
            "targets[1].gpus[0]: 'h100' is not declared; legal: generic",
        ),
        ("  torch26:", "  torch-26:", "releases.torch-26: 'torch-26' is not a name"),
        ("numpy>=2,<2.3", "numpy >> 2", "releases.torch25.companions[0]: 'numpy >> 2' is not a requirement"),
        (
            "numpy>=2,<2.3",
            "'numpy @ file:///x'",
            "releases.torch25.companions[0]: an address for numpy, and only an index says where wheels are",
        ),
        ("numpy>=2,<2.3", "\"numpy; os_name == '\\L'\"", "holds what is no letter, digit or sign"),
        ("suite: bookworm", "suite: --help", "bases.bookworm.suite: string should match pattern"),
        ("  generic:\n", "  generic:\n    arch: sm_9$(x)\n", "gpus.generic.arch: 'sm_9$(x)' is no architecture"),
        ("  generic:\n", "  generic:\n    arch: sm80\n", "gpus.generic.arch: 'sm80' is no architecture, it is spelt"),
        ("  generic:\n", "  generic:\n    arch: sm80\n", "otherwise; nearest: sm_80"),
        ("  generic:\n", "  generic:\n    arch: GFX942\n", "nearest: gfx942"),
        (
            "  generic:\n",
            "  generic:\n    arch: sm_90a\n",
            "the compute capability of a GPU has no letter; nearest: sm_90",
        ),
        ("  cpu: {kind: cpu}", "  ? [cpu]\n  : {kind: cpu}", "unhashable key"),
        ("torchvision: 0.20.1", "torchvision: newest", "releases.torch25.torchvision: 'newest' is not a version"),
        ("without: [torchvision, ", "without: [torchvison, ", "'torchvison' is not known; nearest: torchvision"),
        ("  cpu: {kind: cpu}", "  cpu: {kind: cpu}\n  cpu: {kind: cpu}", "key 'cpu' is on line"),
        ("releases: [torch25, torch26]", "releases: [torch25, torch25]", "two rows are called torch25-cu124"),
        ("flavours:", "flavours: [", "while parsing"),
        (
            "  cpu: {kind: cpu}",
            "  cpu: {kind: cpu, version: '1.0'}",
            "accelerators.cpu.version: cpu has none: leave it",
        ),
        ("kind: cuda, version: '12.4'", "kind: cuda", "accelerators.cu124.version: is missing: of cuda, such as"),
        ("python: '3.11'", "python: '3.13t'", "which no base has: write '3.13'"),
        ("python: '3.11'", "python: '311'", "bases.bookworm.python: '311' is no minor of Python such as"),
        ("required: ['*']", "required: []", "validation.required: is empty, so nothing would be required"),
        ("bases: [bookworm]}", "bases: [bookworm], required: []}", "targets[0].required: is empty, so nothing would"),
        ("bases: [bookworm]}", "bases: [bookworm], exclude: ['*']}", "targets[0].exclude: excludes every row, so"),
        ("gpus:\n", "gpus:\n  4090: {}\n", "4090 is not a name: lower-case letters and digits, letter first"),
        ("[torch28], acc", "[torch28], gpus: [4090], acc", "targets[1].gpus[0]: 4090 is not a name"),
        ("releases: [torch25, torch26]", "releases: []", "targets[0].releases: is empty, so nothing would be built"),
        ("  runtime: {}", "  runtime:", "flavours.runtime: is empty; keys belong here: requirements"),
    ],
)
def test_each_mistake_is_named_with_its_place(tmp_path: Path, old: str, new: str, told: str) -> None:
    """An error has the key path, what is wrong and, where there is one, the nearest legal value."""
    with pytest.raises(MatrixError) as raised:
        load(tmp_path, edited(old, new))
    assert told in str(raised.value)
    assert raised.value.where == str(tmp_path / "matrix.yaml")


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ("memory_gb: -40", "gpus.generic.memory_gb: -40 is not possible: it must be more than 0"),
        ("memory_gb: 4.5", "gpus.generic.memory_gb: 4.5 is no whole number"),
        ("sizing: {cores: -1}", "gpus.generic.sizing.cores: -1 is not possible: it must be more than 0"),
        ("thresholds: {speed.cuda.block: -1}", "gpus.generic.thresholds.speed.cuda.block: -1 is not possible"),
        ("thresholds: {speed.cuda.block: 0.0}", "speed.cuda.block: 0.0 is not possible: it must be more than 0"),
        ("thresholds: {speed.cuda.block: .nan}", "speed.cuda.block: .nan is not possible"),
        ("thresholds: {speed.cuda.block: .inf}", "speed.cuda.block: .inf is not possible"),
        ("thresholds: {speed.cuda.blok: 1.1}", "'speed.cuda.blok' is not known; nearest: speed.cuda.block"),
    ],
)
def test_a_figure_that_cannot_be_is_told_in_plain_words(tmp_path: Path, stated: str, told: str) -> None:
    """Sizes and thresholds are more than nothing and finite, and a threshold has the name of what is measured."""
    with pytest.raises(MatrixError) as raised:
        load(tmp_path, edited("  generic:\n", f"  generic:\n    {stated}\n"))
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("torch25", "2.5.1", ""),
        ("torch251", "2.5.1", ""),
        ("torch25old", "2.5.1", ""),
        ("torch210", "2.10.0", ""),
        ("torch29", "2.10.0", "torch210"),
        ("torch21", "2.10.0", "torch210"),
        ("torch210", "2.1.0", "torch21"),
        ("torch252", "2.5.1", "torch25"),
        ("foo", "2.5.1", "torch25"),
    ],
)
def test_a_release_has_the_name_of_its_minor(tmp_path: Path, name: str, version: str, expected: str) -> None:
    """Who reads an id knows the torch in it; what another minor is called is never a patch."""
    document = yaml.safe_load(MATRIX)
    document["releases"][name] = document["releases"].pop("torch25") | {"torch": version}
    document["targets"] = [document["targets"][0] | {"releases": [name]}]
    if not expected:
        assert load(tmp_path, yaml.safe_dump(document)).targets[0].release.id == name
        return
    with pytest.raises(MatrixError) as raised:
        load(tmp_path, yaml.safe_dump(document))
    assert f"releases.{name}: torch {version} is called {expected!r}, not {name!r}" in str(raised.value)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("rm -rf /", "gpus.generic.run_options[0]: 'rm' is no option of `docker run` in its long form"),
        ("-e HF_TOKEN=hunter2", "'-e' is no option of `docker run` in its long form"),
        ("--shm-size=lots", "gpus.generic.run_options[0]: --shm-size=lots is no size such as --shm-size=8g"),
        ("--shm-size", "is no size such as --shm-size=8g"),
        ("--env=HF_TOKEN=hunter2", "--env=HF_TOKEN looks like a secret"),
        ("--env my_password=hunter2", "--env=my_password looks like a secret"),
    ],
)
def test_a_run_option_that_is_none_is_refused(tmp_path: Path, option: str, told: str) -> None:
    """Options of `docker run` become labels of the image, so a secret among them is refused and not repeated."""
    with pytest.raises(MatrixError) as raised:
        load(tmp_path, edited("run_options: [--shm-size=2g]", f"run_options: ['{option}']"))
    assert told in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["numpy @ https://me:hunter2@example.org/numpy.whl", "numpy @https://me:hunter2@h/ x y"]
)
def test_a_password_in_an_address_is_not_repeated(tmp_path: Path, text: str) -> None:
    """A requirement of a release or of a flavour is no address, and what is said of one holds no credentials."""
    flavour = edited("  runtime: {}", f"  runtime: {{requirements: ['{text}']}}")
    for whole in (edited("numpy>=2,<2.3", f"'{text}'"), flavour):
        with pytest.raises(MatrixError, match="numpy") as raised:
            load(tmp_path, whole)
        assert "hunter2" not in str(raised.value)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """Who edits the file sees every problem in one run."""
    text = edited("suite:", "suit:").replace("torch: 2.6.0", "torch: 2.6").replace("  cpu: {", "  cpu: {kind: cpu, ")
    with pytest.raises(MatrixError) as raised:
        load(tmp_path, text)
    told = str(raised.value)
    assert "4 problems" in told
    assert all(word in told for word in ("suit: unknown", "suite: is missing", "2.6 is a number", "'kind' is on line"))


def test_an_unreadable_matrix_is_a_matrix_error(tmp_path: Path) -> None:
    """A missing or empty file, or one that holds no mapping, is told as such."""
    with pytest.raises(MatrixError, match="cannot be read"):
        schema.load(tmp_path / "absent.yaml")
    for text in ("", "- a list\n", "\x00"):
        with pytest.raises(MatrixError):
            load(tmp_path, text)


def test_a_few_lines_that_mean_gigabytes_are_told_in_short(tmp_path: Path) -> None:
    """Aliases of aliases cost nothing until somebody writes them out, and a message is no place to."""
    lines = [
        "a0: &a0 [x, x, x, x, x, x, x, x, x]",
        *(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]" for n in range(20)),
    ]
    lines += ["releases: *a20", "bases: {x: {kind: *a20}, y: *a20}", "targets: [{arch: *a20, releases: *a20}]"]
    for text in ("\n".join(lines), "bases: &a {x: *a}", "[" * 100_000):
        with pytest.raises(MatrixError) as raised:
            load(tmp_path, text)
        assert len(str(raised.value)) < 5000


def test_an_empty_matrix_is_told_in_plain_words(tmp_path: Path) -> None:
    """No file, an empty one, a list, and no targets: each says what is wrong and what to do, in no library's words."""
    with pytest.raises(MatrixError) as raised:
        schema.load(tmp_path / "absent.yaml")
    assert raised.value.remedy == "git restore matrix.yaml"
    without = MATRIX[: MATRIX.index("targets:")] + "targets: []\n"
    for text, told in (
        ("", "the file: is empty; keys belong here: bases, releases,"),
        ("- a list\n", "the file: holds ['a list']; keys belong here: bases,"),
        (without, "targets: is empty, so nothing would be built"),
    ):
        with pytest.raises(MatrixError) as raised:
            load(tmp_path, text)
        assert told in str(raised.value)
        assert "Document" not in str(raised.value)


def test_rows_that_share_a_lock_must_ask_for_the_same(tmp_path: Path) -> None:
    """Two rows with one lock file but different wheels would make each other stale for ever; told once a lock."""
    text = MATRIX.replace("gpus:\n", "gpus:\n  a100: {arch: sm_80}\n  rtx4090: {arch: sm_89}\n", 1)
    text += (
        "  - {releases: [torch25], accelerators: [cu124], gpus: [a100, rtx4090], bases: [bookworm], "
        "without: [torchaudio]}\n"
    )
    with pytest.raises(MatrixError) as raised:
        load(tmp_path, text)
    assert str(raised.value).count("share the lock") == 1
    assert "targets[0].without and targets[3].without: torch25-cu124 and torch25-cu124-a100 share" in str(raised.value)
    assert "state the same `without`" in str(raised.value)


def test_the_lock_of_bases_with_one_python_fits_the_oldest_of_them(tmp_path: Path) -> None:
    """Wheels for an older C library run on a newer one, so bases may differ in it and share a lock."""
    document = yaml.safe_load(MATRIX)
    document["bases"]["older"] = document["bases"]["bookworm"] | {"glibc": "2.9", "default": False}
    document["targets"][0]["bases"] = ["bookworm", "older"]
    rows = {row.id: row for row in load(tmp_path, yaml.safe_dump(document)).targets}
    new, old = rows["torch25-cu124"], rows["torch25-cu124-older"]
    assert (new.base.glibc, new.wheel_glibc, old.wheel_glibc) == ("2.36", "2.9", "2.9")
    assert fit.asked(new) == fit.asked(old)
    assert fit.asked(new).platform == "x86_64 glibc 2.9"
    assert rows["torch28-cu128"].oldest_glibc == ""
    assert fit.asked(rows["torch28-cu128"]).platform == "x86_64 glibc 2.36"


@pytest.mark.parametrize(
    ("changes", "nearest"),
    [({"python": "3.12"}, {"python: '3.11'"}), ({"glibc": "2.27"}, {"glibc: '2.36'"})],
)
def test_a_base_that_misstates_its_suite_is_left_to_the_rules(
    tmp_path: Path, changes: dict[str, str], nearest: set[str]
) -> None:
    """The matrix can be read, and lint names the real mistake, though another base now shares the locks."""
    document = yaml.safe_load(MATRIX)
    document["bases"]["noble"] = document["bases"]["bookworm"] | {"suite": "noble", "glibc": "2.39", "default": False}
    document["bases"]["noble"] |= {"python": "3.12"}
    document["bases"]["noble"]["packages"] = ["python3.12-dev", *document["bases"]["noble"]["packages"]]
    document["bases"]["bookworm"] |= changes
    document["targets"] = [document["targets"][1] | {"bases": ["bookworm", "noble"]}]
    one, other = load(tmp_path, yaml.safe_dump(document)).targets
    found = [finding for finding in compat.lint(one, KNOWN) if finding.severity == "error"]
    assert {finding.nearest for finding in found if finding.rule in {"base-python", "base-glibc"}} == nearest
    assert ("glibc-floor" in {finding.rule for finding in found}) is ("glibc" in changes)
    assert [finding for finding in compat.lint(other, KNOWN) if finding.severity == "error"] == []


def test_products_take_gpus_flavours_and_excludes(tmp_path: Path) -> None:
    """A product makes every combination but the excluded ones; thresholds and required checks go to the rows."""
    document = yaml.safe_load(MATRIX)
    document["gpus"] |= {
        "hopper": {"arch": "sm_90", "thresholds": {"speed.cuda.block": 1.3}},
        "a100": {"arch": "sm_80"},
    }
    document["flavours"]["devel"] = {}
    document["validation"]["thresholds"] = {"speed.cuda.block": 1.1, "speed.cpu.pointwise": 2}
    document["targets"] = [
        {
            "releases": ["torch25"],
            "accelerators": ["cu124"],
            "gpus": ["generic", "hopper", "a100"],
            "flavours": ["runtime", "devel"],
            "bases": ["bookworm"],
            "required": ["python"],
            "exclude": ["*-a100-devel", "torch25-cu124-devel"],
        }
    ]
    targets = load(tmp_path, yaml.safe_dump(document)).targets
    assert [target.id for target in targets] == [
        "torch25-cu124",
        "torch25-cu124-hopper",
        "torch25-cu124-hopper-devel",
        "torch25-cu124-a100",
    ]
    assert {target.lock_name for target in targets} == {"torch25-cu124-py3.11-x86_64.txt"}
    assert targets[1].gpu.thresholds == {"speed.cuda.block": 1.3, "speed.cpu.pointwise": 2}
    assert targets[0].gpu.thresholds == {"speed.cuda.block": 1.1, "speed.cpu.pointwise": 2}
    assert targets[0].required == ("python",)


def test_a_rocm_row_has_a_plain_id_and_a_dotted_variant(tmp_path: Path) -> None:
    """Ids and file names carry no dots; the wheel index and the suffix do."""
    text = edited("  cpu: {kind: cpu}", "  cpu: {kind: cpu}\n  rocm62: {kind: rocm, version: '6.2'}")
    text += "  - {releases: [torch25], accelerators: [rocm62], bases: [bookworm]}\n"
    target = load(tmp_path, text).targets[-1]
    assert (target.id, target.accelerator.variant) == ("torch25-rocm62", "rocm6.2")
    assert "gfx942" in target.accelerator.archs
    assert not target.accelerator.by_default


def test_each_kind_of_base_has_keys_of_its_own(tmp_path: Path) -> None:
    """What belongs to another kind is an unknown key; an image is pulled by digest only."""
    digest = "sha256:" + "0" * 64
    pulled = f"  team: {{kind: registry, image: 'example.org/base@{digest}', python: '3.11', glibc: '2.36'}}\n"
    text = MATRIX.replace("\nreleases:", f"\n{pulled}\nreleases:", 1)
    base = load(tmp_path, text).bases["team"]
    assert (base.kind, base.image, base.packages) == ("registry", f"example.org/base@{digest}", ())
    for old, new, told in (
        ("example.org", "me:hunter2@example.org", "bases.team.image: '***@example.org/base@sha256:"),
        (f"@{digest}", ":latest", "bases.team.image: 'example.org/base:latest' is not HOST/REPOSITORY@sha256:"),
        ("kind: registry,", "kind: registry, suite: bookworm,", "bases.team.suite: unknown key"),
        ("kind: registry, ", "", "bases.team.kind: is missing: one of debian, registry, dockerfile"),
    ):
        with pytest.raises(MatrixError) as raised:
            load(tmp_path, text.replace(old, new, 1))
        assert told in str(raised.value)


def test_ids_name_what_is_not_usual_and_never_clash(tmp_path: Path) -> None:
    """A base that is not the default is part of the id; names of two kinds of part are never the same."""
    document = yaml.safe_load(MATRIX)
    document["bases"]["noble"] = document["bases"]["bookworm"] | {"default": False, "python": "3.12"}
    document["flavours"]["devel"] = {"packages": ["git"]}
    document["targets"] = [
        {
            "releases": ["torch25"],
            "accelerators": ["cu124"],
            "flavours": ["runtime", "devel"],
            "bases": ["bookworm", "noble"],
        }
    ]
    targets = load(tmp_path, yaml.safe_dump(document)).targets
    assert [(target.id, target.base.lock_name) for target in targets] == [
        ("torch25-cu124", "base-bookworm.txt"),
        ("torch25-cu124-noble", "base-noble.txt"),
        ("torch25-cu124-devel", "base-bookworm-devel.txt"),
        ("torch25-cu124-devel-noble", "base-noble-devel.txt"),
    ]
    assert "git" in targets[2].base.packages
    document["flavours"]["noble"] = {}
    with pytest.raises(MatrixError, match=r"bases.noble: 'noble' is one of flavours already"):
        load(tmp_path, yaml.safe_dump(document))
    del document["flavours"]["noble"]
    document["bases"]["noble"]["default"] = True
    with pytest.raises(MatrixError, match=r"default: true.* here bookworm, noble"):
        load(tmp_path, yaml.safe_dump(document))


def test_a_flavour_says_what_it_adds_for_each_accelerator(tmp_path: Path) -> None:
    """Where it says so, it can't be had for the others."""
    text = edited("  runtime: {}", "  runtime: {}\n  devel: {requirements: [cmake], accelerators: {cu124: [nvcc==1]}}")
    text += "  - {releases: [torch25], accelerators: [cu124, cpu], flavours: [devel], bases: [bookworm]}\n"
    there, missing = load(tmp_path, text).targets[-2:]
    assert (there.flavour.requirements, there.flavour.unavailable) == (("cmake", "nvcc==1"), "")
    assert missing.flavour.unavailable == "it is stated for cu124 only"


def test_an_exclude_that_excludes_nothing_is_told(tmp_path: Path) -> None:
    """Most likely it is misspelt, and the row that was meant would be built."""
    text = edited("bases: [bookworm]}", "bases: [bookworm], exclude: ['torch26-cu142']}")
    with pytest.raises(MatrixError, match=r"targets\[0\].exclude\[0\]: 'torch26-cu142' excludes no row.*torch26-cu124"):
        load(tmp_path, text)


def test_additions_are_part_of_the_id(tmp_path: Path) -> None:
    """A row with a requirements file is another image than the one without."""
    (tmp_path / "serve.txt").write_text("fastapi\n")
    text = MATRIX + "  - {releases: [torch25], accelerators: [cu124], bases: [bookworm], extra: serve.txt}\n"
    target = load(tmp_path, text).targets[-1]
    assert (target.id, target.extra and target.extra.requirements) == ("torch25-cu124-with-serve", ("fastapi",))


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ("nosuch.txt", r"targets\[3\]\.extra: 'nosuch.txt': the requirements cannot be read: No such file"),
        ("a-b.txt", r"targets\[3\]\.extra: 'a-b.txt': a-b.txt makes no name.*; rename the file.*ab\.txt"),
        ("torch.txt", r"targets\[3\]\.extra: 'torch.txt': this is no list of additions: line 1: .*names torch"),
        ("/serve.txt", r"targets\[3\]\.extra: '/serve.txt' is no path from the folder of the matrix"),
        ("lists/../../serve.txt", r"targets\[3\]\.extra: 'lists/\.\./\.\./serve.txt' is no path"),
    ],
)
def test_additions_that_cannot_be_used_are_told_with_their_key_path(tmp_path: Path, extra: str, told: str) -> None:
    """Among all other problems; and what lies outside the checkout is not read."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (tmp_path / "serve.txt").write_text("fastapi\n")
    (folder / "a-b.txt").write_text("fastapi\n")
    (folder / "torch.txt").write_text("torch\n")
    text = MATRIX + f"  - {{releases: [torch25], accelerators: [cu124], bases: [bookworm], extra: {extra}}}\n"
    with pytest.raises(MatrixError, match=told) as raised:
        load(folder, text)
    assert "matrix.yaml" in raised.value.where
