"""Compile modules out of a wheel; run as a script by the image's own interpreter, with the standard library alone.

stdin: one line of JSON {"wheel", "time", "modules": [[member, file name to embed], …], "output"}. The file of that path
then has for each module in order eight bytes of length (little-endian; zero if it cannot be compiled) and that many
bytes of .pyc.
"""

from __future__ import annotations

import importlib.util
import json
import marshal
import struct
import sys
import warnings
import zipfile
import zlib

DAMAGED = 3
"""Exit status when the wheel cannot be read."""


def main() -> None:
    """One process, one module after the other: marshal's output depends on what else the process has compiled."""
    warnings.simplefilter("ignore")  # of packages about their own source
    job = json.loads(sys.stdin.buffer.readline())
    with zipfile.ZipFile(job["wheel"]) as wheel, open(job["output"], "wb") as output:  # noqa: PTH123  nothing else is loaded
        for member, name in job["modules"]:
            data = compiled(wheel.read(member), name, job["time"])
            output.write(struct.pack("<Q", len(data)) + data)


def compiled(source: bytes, name: str, time: int) -> bytes:
    """A .pyc in the timestamp form of PEP 552, whatever SOURCE_DATE_EPOCH says; empty if the source is no module.

    The code is what the import system itself would compile (importlib's source_to_code).
    """
    try:
        code = compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return b""  # torch ships files for other versions of Python
    return importlib.util.MAGIC_NUMBER + struct.pack("<3I", 0, time, len(source) & 0xFFFFFFFF) + marshal.dumps(code)


if __name__ == "__main__":
    try:
        main()
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(DAMAGED)
