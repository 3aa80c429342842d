"""The folder list is the architecture: modules import only downward (torchkiln/README.md)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import torchkiln

PACKAGE = Path(torchkiln.__file__).parent

ORDER = (
    "commands", "transfer", "layerlocking", "pipeline", "planning", "registries", "finished", "locking", "report",
    "doctor", "garbage", "publish", "validation", "composition", "assembly", "layers", "fetch", "wheelcache",
    "download", "inspect", "rootfs", "engines", "sharing", "plan", "stacking", "specs", "lock", "project", "matrix",
    "oci", "home", "room", "network", "pace", "credentials", "process", "console", "errors",
)  # fmt: skip


def imported(path: Path) -> set[str]:
    """Top-level modules of the package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("torchkiln.")}
    return found & set(ORDER)


def test_imports_point_down() -> None:
    """A module imports only from lines below it in the layout."""
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        above = ORDER[: ORDER.index(own)]
        wrong += [f"{path.relative_to(PACKAGE)} imports {name}" for name in imported(path) if name in above]
    assert wrong == []


def test_readme_lists_the_modules_in_that_order() -> None:
    """A reader finds each file and folder of the package in torchkiln/README.md, top to bottom as imports go."""
    listed = re.findall(r"^\| `(\w+)(?:\.py|/)` \|", (PACKAGE / "README.md").read_text(), re.MULTILINE)
    here = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert listed == [name for name in ORDER if name in here]
    assert here <= {"__init__", *ORDER}


def test_every_error_has_its_own_exit_code() -> None:
    """A script can tell errors apart by their exit code; 130 and 141 belong to Ctrl-C and a closed pipe."""
    from torchkiln import errors  # noqa: PLC0415

    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.TorchkilnError)
    ]
    codes = [kind.exit_code for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert not {0, 130, 141} & set(codes)
