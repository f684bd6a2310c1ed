"""The whole machine at once: a recorded one, and this one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker import machine
from stoker.records import Machine, decode, encode

TREES = Path(__file__).parents[1] / "trees"


def test_a_recorded_container_with_what_breaks_runs_in_it() -> None:
    found = machine.inspect(root=TREES / "v2-container", environ={}, data=Path("/data"))
    assert found.cpu.usable == 1.5
    assert found.host.limit_bytes == 1536 * 2**20
    assert found.storage is not None
    assert found.storage.kind == "virtual"  # a container's layer
    assert any("CPU quota is 1.5, though 64" in hint.what and "80%" in hint.what for hint in found.hints)
    assert any(hint.what.startswith("OMP_NUM_THREADS is not set") for hint in found.hints)


def test_the_environment_given_is_the_one_that_counts() -> None:
    given = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "3"}
    found = machine.inspect(root=TREES / "v2-container", environ=given)
    assert not any("OMP_NUM_THREADS" in hint.what for hint in found.hints)
    assert found.cuda.visible_devices == "3"


def test_this_machine_survives_a_trip_through_json() -> None:
    found = machine.inspect(data=Path.cwd())
    assert decode(encode(found), Machine) == found
    assert found.cpu.affinity == len(os.sched_getaffinity(0))
    assert found.software.python == ".".join(map(str, sys.version_info[:3]))
    assert found.software.torch
    assert found.disk is None
    assert not found.cuda.torch_asked


def test_a_disk_is_read_where_told(tmp_path: Path) -> None:
    (tmp_path / "large.bin").write_bytes(os.urandom(2**21))
    heard: list[str] = []
    found = machine.inspect(disk=tmp_path, progress=heard.append)
    assert found.disk is not None
    assert found.disk.files == 1
    assert heard


@pytest.mark.parametrize("asking", ["inspect()", "inspect(check_torch=True)"])
def test_torch_never_enters_the_caller(asking: str) -> None:
    script = f"import sys; from stoker.machine import inspect; found = {asking}; assert 'torch' not in sys.modules"
    if "check_torch" in asking:
        script += "; assert found.cuda.torch_asked; assert found.cuda.cuda or not found.cuda.usable"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
