"""The far side of a check's process: run one check and write its answer to a file."""

from __future__ import annotations

import errno
import json
import traceback
from dataclasses import asdict
from pathlib import Path

from validate import discovery, expect
from validate.model import Context, Result, failed, host_fault

TAIL = 4000
"""Characters of a traceback or an output that the report keeps."""
FULL = {errno.ENOSPC, errno.EDQUOT}


def main(request: Path) -> int:
    """Answer the check that the request names; the status is 0 even when the check fails."""
    document = json.loads(request.read_text(encoding="utf-8"))
    context = Context(scratch=Path(document["scratch"]), found=document["found"], host=document["host"])
    result = answer(document["id"], expect.parse(json.dumps(document["expect"])), context)
    part = Path(document["answer"] + ".part")
    part.write_text(json.dumps(asdict(result), default=str), encoding="utf-8")
    part.rename(document["answer"])
    return 0


def answer(identifier: str, row: expect.Expect, context: Context) -> Result:
    """Run a check; what it raises is its failure, unless the disk is full."""
    loaded = discovery.load(identifier)
    if loaded.run is None:
        return failed(f"the check's file cannot be imported: {loaded.error}")
    try:
        return loaded.run(row, context)
    except Exception as error:  # noqa: BLE001  any exception is the answer
        return judged(error)


def judged(error: BaseException) -> Result:
    """What an exception that a check did not expect says."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in FULL:
            return host_fault(f"the disk is full: {cause.filename or cause}")
        cause = cause.__cause__ or cause.__context__
    return failed(f"{type(error).__name__}: {headline(str(error))}", traceback=traceback.format_exc()[-TAIL:])


def headline(message: str) -> str:
    """The first line of a message, with the second where the first only announces it (Dynamo's "… raised:")."""
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()] or [""]
    return " ".join(lines[:2] if lines[0].endswith(":") else lines[:1])[:500]
