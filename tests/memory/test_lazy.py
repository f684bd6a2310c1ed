"""Models built lazily: no weight is computed or held, whatever their constructor does with it."""

import os
import subprocess
import sys

import psutil
import torch
from torch import nn

from stoker.memory.trace.fake_cuda import LazyBuild

SIDE = 8192
WEIGHT_BYTES = SIDE * SIDE * 4


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


def test_casts_copies_and_init_touch_no_weight() -> None:
    with LazyBuild():  # the first use imports what torch needs for it
        nn.Linear(100, 100).to(torch.bfloat16)
    before = _resident()
    with LazyBuild():
        layer = nn.Linear(SIDE, SIDE, bias=False)
        nn.init.xavier_uniform_(layer.weight)
        copied = nn.Linear(SIDE, SIDE, bias=False)
        copied.weight.data.copy_(layer.weight)
        twin = layer.weight.detach().clone()
        half = layer.to(torch.bfloat16)
    assert (half.weight.dtype, half.weight.shape) == (torch.bfloat16, (SIDE, SIDE))
    assert isinstance(half.weight, nn.Parameter)
    assert twin.dtype == torch.float32
    assert _resident() - before < WEIGHT_BYTES / 4


def test_small_tensors_and_tensors_from_outside_keep_their_values() -> None:
    outside = torch.arange(100_000, dtype=torch.float32)
    with LazyBuild():
        small = torch.ones(8).to(torch.float64).clone()
        cast = outside.to(torch.bfloat16)
        target = torch.empty(100_000, dtype=torch.float64)
        mask = torch.zeros(100, 100, dtype=torch.bool).clone()
    assert small.sum() == 8
    assert cast[1000] == 1000
    assert target.shape == outside.shape
    assert mask.dtype == torch.bool


def test_a_model_larger_than_the_machine_can_be_built() -> None:
    """Forty times 4 GiB: in a process of its own, whose memory the kernel counts from its start."""
    code = (
        "import resource, torch\n"
        "from stoker.memory.trace.fake_cuda import LazyBuild\n"
        "with LazyBuild():\n"
        "    made = [torch.nn.Linear(32768, 32768, bias=False).to(torch.bfloat16) for _ in range(40)]\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=True
    )
    assert int(done.stdout) < 4 * 2**20, "KiB"
