"""What a single value of matrix.yaml may look like, and what is said of one that does not; pure.

A message never repeats what may hold a password.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema

from torchkiln.errors import ImageError, UsageError
from torchkiln.matrix.publishing import LAYER_LIMIT
from torchkiln.oci import compression, reference

SIZED = ("--memory", "--memory-reservation", "--shm-size")
"""Options of `docker run` whose value is a size."""
SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|KEY")
"""In the name of a variable."""
PYTHON = r"^3\.\d+$"
COMPRESSED = r"^(gzip|zstd(:[0-9]{1,2})?)$"
ARCH = r"^(sm_[0-9]{2,4}|gfx[0-9a-f]{3,8})?$"


def _version(text: str) -> str:
    try:
        Version(text)
    except InvalidVersion:
        raise ValueError(f"{text!r} is not a version") from None
    return text


def _python(text: str) -> str:
    if re.fullmatch(PYTHON, text):
        return text
    if re.fullmatch(r"3\.\d+t", text):
        raise ValueError(f"{text!r} is the build without a global lock, which no base has: write '{text[:-1]}'")
    raise ValueError(f"{text!r} is no minor of Python such as '3.11'")


def _requirement(text: str) -> str:
    name = re.split(r"[@\s:/]", text.strip(), maxsplit=1)[0]
    try:
        address = Requirement(text).url
    except InvalidRequirement:
        shown = f"what begins with {name!r}" if "@" in text or "//" in text else repr(text)
        raise ValueError(f"{shown} is not a requirement such as numpy>=2") from None
    if address:
        raise ValueError(f"an address for {name}, and only an index says where wheels are")
    if not text.isprintable():  # it becomes a line of a lock
        raise ValueError(f"{text!r} holds what is no letter, digit or sign")
    return text


def _by_digest(text: str) -> str:
    try:
        reference.parse(text)
    except ImageError as error:
        raise ValueError(f"{reference.masked(text)!r} is {error.what}: {error.remedy}") from None
    return text


def _compression(text: str) -> str:
    try:
        compression.parse(text)
    except UsageError as error:
        raise ValueError(f"{error.what}; legal: {error.remedy}") from None
    return text


def _arch(text: str) -> str:
    if re.fullmatch(ARCH, text):
        return text
    plain = re.fullmatch(r"(?:sm|compute)[_-]?([0-9]{2,4})([a-z]?)|gfx[_-]?([0-9a-f]{3,8})", text.lower())
    if plain is None:
        raise ValueError(f"{text!r} is no architecture such as sm_90 or gfx942")
    right = f"sm_{plain[1]}" if plain[1] else f"gfx{plain[3]}"
    why = "the compute capability of a GPU has no letter" if plain[2] else "it is spelt otherwise"
    raise ValueError(f"{text!r} is no architecture, {why}; nearest: {right}")


def _below(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{text!r} is no path from the folder of the matrix to a file in it")
    return text


def _option(text: str) -> str:
    """Messages show the name of an option, or of a variable, and no value but a size."""
    name, _, value = re.sub(r"\s+", "=", text.strip(), count=1).partition("=")
    if not re.fullmatch(r"--[a-z][a-z-]*", name) or not text.isprintable():
        raise ValueError(f"{name!r} is no option of `docker run` in its long form, --name or --name=value")
    variable = value.partition("=")[0]
    if name == "--env" and SECRET.search(variable.upper()):
        raise ValueError(f"--env={variable} looks like a secret, and images show these options: give it when they run")
    if name in SIZED and not re.fullmatch(r"(\d+(\.\d+)?) ?([kmgtp]i?)?b?", value.lower()):
        raise ValueError(f"{name}={value} is no size such as {name}=8g")
    return text


Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*$")]
"""No dashes, so that ids made of names never clash."""
Names = Annotated[list[str], Field(min_length=1)]
Versioned = Annotated[str, AfterValidator(_version)]
Requires = Annotated[str, AfterValidator(_requirement)]
Suite = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9.-]*$")]
Image = Annotated[str, AfterValidator(_by_digest)]
InImage = Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9_+-][A-Za-z0-9._+-]*)+$")]
"""An absolute path without `..`: it becomes part of paths and a line of pyvenv.cfg."""
Arch = Annotated[str, AfterValidator(_arch), WithJsonSchema({"type": "string", "pattern": ARCH})]
"""It becomes part of a shell's profile."""
Below = Annotated[str, AfterValidator(_below)]
"""A file beside the matrix or in a folder there, so that a checkout means the same anywhere."""
Package = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]
Python = Annotated[str, AfterValidator(_python), WithJsonSchema({"type": "string", "pattern": PYTHON})]
Option = Annotated[str, AfterValidator(_option), WithJsonSchema({"type": "string", "pattern": "^--[a-z]"})]
Compressed = Annotated[str, AfterValidator(_compression), WithJsonSchema({"type": "string", "pattern": COMPRESSED})]
Amount = Annotated[int, Field(gt=0)]
LayerCount = Annotated[int, Field(gt=0, le=LAYER_LIMIT)]
"""A derived image needs a few more, and no engine takes many more."""
Threshold = Literal["speed.cpu.pointwise", "speed.cpu.simplecnn", "speed.cuda.block"]
"""What validate/ measures: speed.<device>.<name>; tests/matrix/test_forms.py holds it against the suite."""
Figure = Annotated[float, Field(gt=0, allow_inf_nan=False)]
