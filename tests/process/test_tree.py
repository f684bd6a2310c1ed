"""Processes below a process, and what they leave behind."""

import mmap
import os
import subprocess
import sys
from pathlib import Path
from time import time

from stoker.process.tree import family, remove_shared_memory


def test_a_family_is_a_process_and_all_below_it() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as parent:
        while len(found := family(parent.pid)) < 2:
            assert parent.poll() is None
        assert found[0] == parent.pid
        parent.communicate(b"\n")


def test_shared_memory_of_ended_processes_is_removed_and_no_other(tmp_path: Path) -> None:
    before_s = time()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, alive, other = f"torch_{ended.pid}_1_0", f"torch_{os.getpid()}_1_0", f"{ended.pid}_of_another_program"
    in_use, old, earlier = f"torch_{ended.pid}_2_0", f"torch_{ended.pid}_3_0", "torch_1_1_0"
    for name in (left, alive, other, in_use, old, earlier):
        (tmp_path / name).write_bytes(b"batch")
    os.utime(tmp_path / old, (before_s - 60, before_s - 60))
    with (tmp_path / in_use).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        remove_shared_memory(min(ended.pid, os.getpid()), before_s - 1, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {alive, other, in_use, old, earlier}
