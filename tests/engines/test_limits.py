from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.engines import Limits, limits

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ALL = Limits(memory_bytes=1 << 30, cpus=1.5, processes=7)


def test_settings() -> None:
    """Both generations of control groups are told the same, and nothing where nothing is asked."""
    assert limits.settings(ALL, unified=True) == {
        "memory": {"memory.max": "1073741824", "memory.swap.max": "0"},
        "cpu": {"cpu.max": "150000 100000"},
        "pids": {"pids.max": "7"},
    }
    assert limits.settings(ALL, unified=False) == {
        "memory": {"memory.limit_in_bytes": "1073741824"},
        "cpu": {"cpu.cfs_quota_us": "150000"},
        "pids": {"pids.max": "7"},
    }
    assert limits.settings(Limits(), unified=True) == {}


def test_half_a_bound_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where one controller can't be used, no group is left, and the engine says that limits are not enforced."""
    monkeypatch.setattr(limits, "GROUPS", tmp_path)
    (tmp_path / "memory").mkdir()  # cgroup v1 without cpu and pids
    monkeypatch.setattr(limits, "settings", lambda _, **__: {"memory": {}, "cpu": {"cpu.cfs_quota_us": "1"}})
    with limits.group(ALL) as groups:
        assert groups == ()
    assert not limits.enforced()
    assert list((tmp_path / "memory").iterdir()) == []
