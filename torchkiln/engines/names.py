"""Names of images in an engine, by the grammar of distribution/reference: `[HOST[:PORT]/]PATH[:TAG]`."""

from __future__ import annotations

import re

from torchkiln.errors import UsageError

_HOST = r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?::[0-9]+)?/)?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"(?P<repository>{_HOST}{_PART}(?:/{_PART})*)(?::(?P<tag>\w[\w.-]{{0,127}}))?", re.ASCII)


def split(name: str) -> tuple[str, str]:
    """Repository and tag, `latest` if none is written; UsageError for what no engine takes as a name."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise UsageError(
            f"not a name for an image: {name!r}",
            remedy="[HOST[:PORT]/]NAME[:TAG], NAME in small letters, such as torchkiln/torch213-cpu:latest",
        )
    return found["repository"], found["tag"] or "latest"


def whole(name: str) -> str:
    """The name with its tag written out; UsageError as `split`."""
    return ":".join(split(name))
