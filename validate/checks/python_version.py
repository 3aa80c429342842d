"""The interpreter is the row's."""

from __future__ import annotations

import platform
import struct
import sys
import sysconfig

from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="Python is the row's",
    explanation="The image runs another Python than its row says: tags, bytecode and binary wheels of the row do not "
    "fit it. Rebuild with the base whose Python the row names.",
    seconds=20,
)


def run(expect: Expect, _context: Context) -> Result:
    """Minor version, implementation, word size and GIL."""
    found = {
        "version": platform.python_version(),
        "implementation": sys.implementation.name,
        "bits": struct.calcsize("P") * 8,
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "executable": sys.executable,
        "prefix": sys.prefix,
    }
    minor = "{}.{}".format(*sys.version_info[:2])
    if minor != expect.python:
        return failed(f"Python {minor}, the row says {expect.python}", **found)
    if (found["implementation"], found["bits"], found["free_threaded"]) != ("cpython", 64, False):
        return failed("not 64-bit CPython with the GIL, which the row's wheels are built for", **found)
    return passed(str(found["version"]), **found)
