from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from torchkiln.home import Home


@pytest.fixture
def store(home: Home) -> Store:
    """The store of the test's own home."""
    return Store(home.store)
