from __future__ import annotations

import pytest

from torchkiln.matrix import facts

KNOWN = facts.read()


@pytest.mark.parametrize(
    ("expression", "version", "covered"),
    [
        ("2.5", "2.5.1", True),
        ("2.5", "2.15.0", False),
        ("2.1", "2.10.0", False),
        ("2.1 to 2.5", "2.5.1", True),
        ("2.1 to 2.5", "2.6.0", False),
        ("2.4.0 to 2.5.0", "2.5.1", False),
        ("2.4, 2.5", "2.4.1", True),
        ("2.9.0 and 2.9.1", "2.9.1", True),
        ("2.8 on", "2.10.0", True),
        ("2.8 on", "2.7.1", False),
        ("2.12.1, 2.13", "2.12.0", False),
    ],
)
def test_a_range_covers_what_it_says(expression: str, version: str, covered: bool) -> None:  # noqa: FBT001  a table
    """A minor covers its patches, a range both ends, `on` everything later; 2.1 is not 2.10."""
    assert facts.covers(expression, version) is covered


def test_every_release_has_its_variants_and_they_have_drivers() -> None:
    """No hole in the tables that rows are completed from: each CUDA build of each torch has a driver floor."""
    for release in KNOWN.releases:
        variants = facts.variants(KNOWN, release.torch)
        assert release.pypi_variant == facts.default_variant(KNOWN, release.torch)
        assert release.pypi_variant in variants
        missing = [name for name in variants if name.startswith("cu") and not facts.driver(KNOWN, name, release.torch)]
        assert missing == []


@pytest.mark.parametrize(
    ("variant", "torch", "expected"),
    [
        ("cu118", "2.5.1", "sm_37 sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"),
        ("cu128", "2.7.1", "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120"),
        ("cu118", "2.7.1", ""),
        ("cu132", "2.15.0", "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"),
        ("rocm6.1", "2.4.1", "gfx900 gfx906 gfx908 gfx90a gfx1030 gfx1100 gfx942"),
        ("rocm6.2.4", "2.6.0", ""),
        ("cpu", "2.13.0", ""),
    ],
)
def test_architectures_are_named_as_torch_names_them(variant: str, torch: str, expected: str) -> None:
    """The form is that of torch.cuda.get_arch_list(); what is not established is empty, never guessed."""
    assert " ".join(facts.archs(KNOWN, variant, torch)) == expected


@pytest.mark.parametrize(
    ("variant", "torch", "full"),
    [
        ("cu128", "2.7.1", "570.26"),
        ("cu128", "2.8.0", "570.124.06"),
        ("cu130", "2.13.0", ""),
        ("cu124", "2.6.0", "550.54.15"),
    ],
)
def test_the_full_driver_depends_on_the_release(variant: str, torch: str, full: str) -> None:
    """A variant was built with other toolkits over time; an unknown one stays unknown."""
    found = facts.driver(KNOWN, variant, torch)
    assert found
    assert found.full == full


def test_every_table_has_its_source() -> None:
    """Evidence of a finding always ends in where the fact comes from."""
    needed = {"releases", "index_variants", "cuda_driver", "arch_lists_cuda", "arch_lists_rocm", "gpu_profiles"}
    needed |= {"wheel_floor", "triton_setuptools", "numpy", "index_wheels"}
    assert needed <= KNOWN.sources.keys()


@pytest.mark.parametrize(
    ("torch", "python", "name"),
    [
        ("2.5.1", "3.12", "pytorch-triton-rocm"),
        ("2.5.1", "3.13", ""),
        ("2.8.0", "3.13", "pytorch-triton-rocm"),
        ("2.10.0", "3.11", "triton-rocm"),
        ("2.13.0", "3.11", "triton-rocm"),
        ("2.4.0", "3.11", ""),
    ],
)
def test_the_triton_of_a_rocm_build_has_its_name(torch: str, python: str, name: str) -> None:
    """As of the nearest release known; none where torch asks for none, or nothing is known of one so old."""
    assert facts.rocm_triton(KNOWN, torch, python) == name
