"""Processes below a process, and what they leave behind."""

import os
import subprocess
import sys
from pathlib import Path

from stoker.process.tree import family, remove_shared_memory


def test_a_family_is_a_process_and_all_below_it() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as parent:
        while len(found := family(parent.pid)) < 2:
            assert parent.poll() is None
        assert found[0] == parent.pid
        parent.communicate(b"\n")


def test_shared_memory_of_ended_processes_is_removed_and_no_other(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, alive, other = f"torch_{ended.pid}_1_0", f"torch_{os.getpid()}_1_0", f"{ended.pid}_of_another_program"
    for name in (left, alive, other):
        (tmp_path / name).touch()
    remove_shared_memory([ended.pid, os.getpid()], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {alive, other}
