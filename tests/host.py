"""Tests that need the CPUs for themselves."""

import os

import pytest

MOST_LOAD = 2.0
"""Runnable processes for each CPU. With more, times say nothing about what was tested."""


def skip_if_busy(why: str) -> None:
    """Skip the test if the host has much more to do than it has CPUs. `why` is what went wrong."""
    load, cpus = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > MOST_LOAD * cpus:
        pytest.skip(f"the host is busy (load {load:.1f} on {cpus} CPUs): {why}")
