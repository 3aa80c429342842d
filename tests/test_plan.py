"""A plan is a pure function of target and lock; each part of a key matters."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from tests.kiln import ROOT
from torchkiln import plan, specs, stacking
from torchkiln.errors import PlanError
from torchkiln.lock import baselock, rows
from torchkiln.lock.baselock import BaseLock
from torchkiln.lock.lockfile import Lock, Pin
from torchkiln.matrix import schema
from torchkiln.matrix.publishing import LAYER_LIMIT
from torchkiln.matrix.target import Accelerator, Base, Flavour, Gpu, Release, Target, select
from torchkiln.oci import digest as digests
from torchkiln.oci.image import LAYER_TYPE, Descriptor, Layer

TARGET = Target(
    release=Release(id="torch25", torch="2.5.1", torchvision="0.20.1", torchaudio="2.5.1"),
    accelerator=Accelerator(
        id="cu124", kind="cuda", version="12.4", driver_floor="525.60.13", driver_full="550.54.15", archs=("sm_90",)
    ),
    gpu=Gpu(id="generic"),
    flavour=Flavour(id="runtime"),
    base=Base(
        id="bookworm",
        kind="debian",
        default=True,
        suite="bookworm",
        python="3.11",
        glibc="2.36",
        packages=("python3",),
    ),
    required=("*",),
)
BASE = BaseLock(packages=(("libpython3.11-minimal", "3.11.2-6+deb12u6"),), digest="sha256:" + "b" * 64)
SUITE = specs.SuiteSpec(files=(("__main__.py", "c" * 64),), expectation=b"{}")


def pin(name: str, size: int = 1, version: str = "1") -> Pin:
    """A wheel that exists on paper."""
    sha256 = hashlib.sha256(f"{name} {version}".encode()).hexdigest()
    return Pin(name=name, version=version, sha256=sha256, filename=f"{name}-{version}-py3-none-any.whl", size=size)


def lock(*pins: Pin) -> Lock:
    """A lock of these pins."""
    return Lock(inputs="sha256:" + "0" * 64, pins=pins, digest="sha256:" + "a" * 64)


PINS = (pin("filelock"), pin("nvidia-cublas-cu12", 9), pin("torch", 99, "2.5.1+cu124"), pin("triton", 50))


def test_layers_go_from_what_is_shared_most_to_what_changes_most() -> None:
    """Base, NVIDIA's wheels, torch and companions, others, each below its bytecode; then what is ours."""
    titles = [spec.title for spec in plan.plan(TARGET, lock(*PINS), BASE, SUITE).layers]
    assert titles == [
        "base bookworm",
        "nvidia-cublas-cu12 1",
        "torch 2.5.1+cu124",
        "bytecode of torch 2.5.1+cu124",
        "triton 1",
        "bytecode of triton 1",
        "filelock 1",
        "bytecode of filelock 1",
        "environment",
        "validation suite",
    ]


@pytest.mark.parametrize("row", ["torch25-cu124", "torch213-cpu", "torch213-cu130-devel"])
def test_golden_plan(row: str, pytestconfig: pytest.Config) -> None:
    """What a committed row is planned as, to the letter; `./inv test --golden` writes it anew, to be read as a diff."""
    (target,) = select(schema.load(ROOT / "matrix.yaml").targets, [row])
    lock = rows.read(ROOT / "images/locks", target)
    planned = plan.plan(target, lock, BASE, SUITE, recipe="sha256:" + "e" * 64)
    text = json.dumps(plan.to_json(planned), indent=1) + "\n"
    golden = ROOT / "tests/golden" / f"plan-{row}.json"
    if pytestconfig.getoption("golden"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_order_of_the_lock_does_not_matter() -> None:
    """Equal sets of pins are equal plans."""
    forward = plan.plan(TARGET, lock(*PINS), BASE, SUITE)
    backward = plan.plan(TARGET, lock(*reversed(PINS)), BASE, SUITE)
    assert forward.layers == backward.layers


def test_many_small_wheels_share_a_layer() -> None:
    """Never more layers than engines take; the big ones stay alone."""
    pins = [pin(f"small{n:03}", size=n + 1) for n in range(200)]
    layers = plan.plan(TARGET, lock(*pins, pin("torch", 10**9, "2.5.1")), BASE, SUITE).layers
    assert len(layers) <= LAYER_LIMIT
    wheels = [spec for spec in layers if isinstance(spec, specs.WheelSpec)]
    assert sum(len(spec.pins) for spec in wheels) == 201
    assert wheels[0].title == "torch 2.5.1"
    assert max(p.weight for p in wheels[-1].pins) <= min(p.weight for spec in wheels[:-1] for p in spec.pins)


def test_a_wheel_of_unknown_size_keeps_a_layer_to_itself() -> None:
    """Who knows only the hash of a wheel takes it for one of the big ones, whatever the order of the pins."""
    pins = [*(pin(f"small{n}", size=n + 1) for n in range(4)), replace(pin("unknown"), size=None)]
    for ordered in (pins, pins[::-1]):
        grouped = stacking.groups(tuple(ordered), 6)
        assert [len(group) for group in grouped] == [1, 1, 3]
        assert grouped[0][0].name == "unknown"


def test_what_is_added_lies_on_top() -> None:
    """Rows with a flavour's wheels, or a user's, share every layer of wheels and bytecode with the rows without."""
    own = tuple(pin(f"own{n:02}", size=n) for n in range(50))
    more = (pin("added", 10**9), pin("nvidia-added", 10**9))
    joined = replace(lock(*own, *more), parts=(own, more))
    below, above = (plan.plan(TARGET, one, BASE, SUITE).layers for one in (lock(*own), joined))
    assert above[: len(below) - 2] == below[:-2]
    assert [spec.title for spec in above[len(below) - 2 :]] == [
        "nvidia-added 1",
        "added 1",
        "bytecode of added 1",
        "environment",
        "validation suite",
    ]


def test_layers_stay_few_whatever_is_added() -> None:
    """A long list of additions shares layers too."""
    parts = tuple(tuple(pin(f"{name}{n:03}", size=n) for n in range(200)) for name in ("own", "flavour", "extra"))
    joined = replace(lock(*(one for part in parts for one in part)), parts=parts)
    assert len(plan.plan(TARGET, joined, BASE, SUITE).layers) <= LAYER_LIMIT


def test_no_room_is_refused() -> None:
    """A plan that cannot be is an error, not a truncated image."""
    with pytest.raises(PlanError, match="do not go into 1 layers"):
        stacking.groups(PINS, 1)


def layer(number: int) -> Layer:
    """A layer that exists on paper."""
    digest = digests.of_bytes(str(number).encode())
    return Layer(descriptor=Descriptor(media_type=LAYER_TYPE, digest=digest, size=1), diff_id=digest, unpacked_size=512)


def test_layers_of_the_base_count() -> None:
    """An image of many layers leaves wheels less room, never too little; one of too many is refused."""
    row = replace(TARGET, base=replace(TARGET.base, kind="registry", interpreter="/usr/local/bin/python3"))
    pins = tuple(pin(f"wheel{number:03}", size=number + 1) for number in range(120))
    for count in (1, 3, 60):
        held = baselock.of_image([layer(n) for n in range(count)], source="x", config="y", python="3.11.2")
        planned = plan.plan(row, lock(*pins), held, SUITE)
        assert len(planned.layers) <= LAYER_LIMIT
        assert planned.layers[count].title == "base bookworm, user and folders"
        assert len({spec.key for spec in planned.layers}) == len(planned.layers)
        assert [spec.interpreter for spec in planned.layers if isinstance(spec, specs.EnvironmentSpec)] == [
            "/usr/local/bin/python3"
        ]
    held = baselock.of_image([layer(n) for n in range(111)], source="x", config="y", python="3.11.2")
    with pytest.raises(PlanError, match="needs room for 121 layers at least, and may have 120: 112 of its base"):
        plan.plan(row, lock(*pins), held, SUITE)


def test_what_an_interpreter_of_others_compiles_is_for_its_own_image() -> None:
    """Even one of the same version writes no bytecode into rows on another base; the wheels are shared all the same."""
    foreign = replace(TARGET, base=replace(TARGET.base, kind="registry"))
    held = [baselock.of_image([layer(n)], source="x", config="y", python=BASE.python) for n in (1, 2)]
    plans = [
        plan.plan(TARGET, lock(*PINS), BASE, SUITE),
        *(plan.plan(foreign, lock(*PINS), one, SUITE) for one in held),
    ]
    for kind, shared in ((specs.BytecodeSpec, False), (specs.WheelSpec, True)):
        first, second, third = ({spec.key for spec in one.layers if isinstance(spec, kind)} for one in plans)
        assert (first == second == third) is shared
        assert bool(first & second | second & third) is shared


def test_cuda_rows_ask_for_the_gpu_and_others_do_not() -> None:
    """Visibility and capability variables on CUDA rows alone, with the true driver floor; never a gfx override."""
    cuda = plan.environment(TARGET)
    assert cuda["NVIDIA_REQUIRE_CUDA"] == "driver>=525"
    cpu = plan.environment(replace(TARGET, accelerator=Accelerator(id="cpu", kind="cpu")))
    rocm = plan.environment(replace(TARGET, accelerator=Accelerator(id="rocm62", kind="rocm", version="6.2")))
    assert not [name for name in (*cpu, *rocm) if name.startswith(("NVIDIA_", "HSA_"))]
    assert "LD_LIBRARY_PATH" not in cuda
    assert "USER" not in cuda


def test_a_row_whose_gpu_pretends_to_be_another_is_labelled() -> None:
    """Who runs the image sees that nobody supports it; no other row has that label."""
    label, option = "org.torchkiln.unsupported", "--env=HSA_OVERRIDE_GFX_VERSION=9.4.2"
    assert label not in plan.labels(TARGET, lock(*PINS))
    row = replace(TARGET, gpu=replace(TARGET.gpu, run_options=("--ipc=host", option)))
    assert plan.labels(row, lock(*PINS))[label] == "gfx-override"


def test_devel_rows_of_cuda_have_a_toolkit_and_no_other_row_has() -> None:
    """A compiler is on PATH and CUDA_HOME names its toolkit, made of wheels; runtime rows keep layers and keys."""
    devel = replace(TARGET, flavour=Flavour(id="devel"))
    planned = {row.id: plan.plan(row, lock(*PINS), BASE, SUITE) for row in (TARGET, devel)}
    (added,) = [spec for spec in planned[devel.id].layers if spec not in planned[TARGET.id].layers]
    assert added == specs.ToolkitSpec(pins=PINS[1:2], archs="9.0")
    assert planned[devel.id].config.env["CUDA_HOME"] == "/opt/cuda"
    assert planned[devel.id].config.env["PATH"].startswith("/opt/venv/bin:/opt/cuda/bin:/usr/local/sbin:")
    assert planned[devel.id].config.env["TORCH_CUDA_ARCH_LIST"] == "9.0"
    cpu = replace(devel, accelerator=Accelerator(id="cpu", kind="cpu"))
    for row in (TARGET, cpu):
        assert "CUDA_HOME" not in plan.environment(row)
        assert "/opt/cuda" not in plan.environment(row)["PATH"]


@pytest.mark.parametrize(
    ("archs", "gpu", "expected"),
    [
        (("sm_75", "sm_90", "sm_120", "compute_120"), "", "7.5 9.0 12.0+PTX"),
        (("sm_75", "sm_90a"), "", "7.5 9.0a"),
        (("sm_75", "sm_90"), "sm_89", "8.9"),
        ((), "", ""),
    ],
)
def test_extensions_are_compiled_for_the_gpus_of_the_row(archs: tuple[str, ...], gpu: str, expected: str) -> None:
    """The row's own GPU, else all that its wheels serve, in torch's form; nothing where that is not established."""
    accelerator = replace(TARGET.accelerator, archs=archs)
    row = replace(TARGET, flavour=Flavour(id="devel"), accelerator=accelerator, gpu=Gpu(id="some", arch=gpu))
    assert plan.arch_list(row) == expected
    assert plan.environment(row).get("TORCH_CUDA_ARCH_LIST", "") == expected


def test_python_of_the_base_is_read_from_its_lock() -> None:
    """Upstream version, without Debian's revision."""
    assert BASE.python == "3.11.2"
