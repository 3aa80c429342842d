"""What checks make of layers that others made, and of code for GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.sabotage.sabotaged_layers import ELF, SITE, TARGET, Member, Parts, contents
from torchkiln.inspect import files, settings, versions
from torchkiln.specs import adopted

if TYPE_CHECKING:
    from torchkiln.inspect.subject import Subject

LEFT = Member(path="etc/passwd-", data=b"x")
BASE = replace(TARGET.base, kind="registry", image="127.0.0.1/x@sha256:" + "a" * 64)


def subject(*layers: tuple[Member, ...], titles: tuple[str, ...]) -> Subject:
    """The sound image with these layers, on a base that others made."""
    sound = Parts().subject()
    shown = tuple(replace(sound.image.layers[0], title=title) for title in titles)
    held = tuple(contents(members) for members in layers)
    target = replace(sound.target, base=BASE)
    return replace(sound, target=target, image=replace(sound.image, layers=shown), layers=held)


def test_what_others_left_in_their_layers_is_theirs() -> None:
    """Below the layer that completes the base, leftovers are not ours to judge; above it they are."""
    titles = ("base bookworm, layer 1 of 1", adopted(BASE), "torch")
    assert files.leftovers(subject((LEFT,), (), (), titles=titles)) == []
    assert files.leftovers(subject((), (LEFT,), (), titles=titles)) == ["/etc/passwd- was left behind"]
    assert files.leftovers(subject((LEFT,), (), (), titles=("", "", ""))) == ["/etc/passwd- was left behind"]


def test_an_assembled_base_is_judged_whole() -> None:
    """No title takes a layer of our own out."""
    sound = subject((LEFT,), (), titles=(adopted(BASE), "torch"))
    assert files.leftovers(replace(sound, target=TARGET)) == ["/etc/passwd- was left behind"]


def test_packages_of_the_bases_own_python_are_not_the_rows() -> None:
    """An image may bring pip for its Python elsewhere; /opt/venv does not see it. What we assemble brings none."""
    path = "usr/local/lib/python3.11/site-packages/pip-24.0.dist-info/METADATA"
    pip = Member(path=path, data=b"Metadata-Version: 2.1\nName: pip\nVersion: 24.0\n\n")
    found = Parts().adding(pip).subject()
    elsewhere = replace(BASE, interpreter="/usr/local/bin/python3")
    assert versions.versions(replace(found, target=replace(TARGET, base=elsewhere))) == []
    assert versions.versions(found) == ["pip 24.0 is not in the lock"]


@pytest.mark.parametrize("machine", [b"\xe0\x00", b"\xbe\x00"])
def test_code_for_gpus_is_for_no_machine_of_ours(machine: bytes) -> None:
    """Kernels of ROCm and CUDA are ELF files too, some with `.so` in their names."""
    kernel = Member(path=f"{SITE}/torch/lib/Kernels.so-000-gfx90a.hsaco", data=ELF[:18] + machine)
    assert settings.architecture(Parts().adding(kernel).subject()) == []
