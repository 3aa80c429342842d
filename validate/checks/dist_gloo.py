"""Two processes add tensors through gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="gloo: all_reduce over two processes",
    explanation="torch.distributed does not work on the CPU, often because the container cannot resolve its own name: "
    "look at /etc/hosts, or set GLOO_SOCKET_IFNAME=lo.",
    needs=("torch.import", "host.scratch"),
    seconds=120,
)
WORKER = """
import sys, torch, torch.distributed as dist
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
tensor = torch.full((3,), float(rank + 1))
dist.all_reduce(tensor)
print("sum", tensor.tolist())
dist.destroy_process_group()
"""


def run(_expect: Expect, context: Context) -> Result:
    """1 + 2 = 3 on both sides."""
    store = context.scratch / "rendezvous"
    workers = [_start(rank, store) for rank in (0, 1)]
    outputs = [worker.communicate()[0] for worker in workers]
    if all("sum [3.0, 3.0, 3.0]" in output for output in outputs):
        return passed("CPU: 2 processes", device="CPU")
    lines = [line for output in outputs for line in output.strip().splitlines()[-1:]]
    return failed(
        f"all_reduce did not give the sum: {'; '.join(lines)[:300]}", outputs=[text[-2000:] for text in outputs]
    )


def _start(rank: int, store: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603  our own code
        [sys.executable, "-c", WORKER, str(rank), str(store)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
