"""Real drivers, killed: `stoker study run` in a process of its own, and what it leaves behind."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

GRID = """\
name = "killed"
seed = {seed}
repeats = {repeats}

[fixed]
workload = "{workload}"
mode = "infer"
items = 16
device = "sleep:10ms"

[axes]
batch_size = [2, 4]
num_workers = [0, 1, 2]
"""
"""Six tasks whose runs take a few tenths of a second, most of them with worker processes."""

_WORKLOAD = Path(__file__).parents[1] / "workloads" / "small.py"


@contextlib.contextmanager
def place(*, seed: int = 0, repeats: int = 2) -> Iterator[Path]:
    """A folder with a grid, and in it a folder for temporary files. Its name is short, as those of sockets must be."""
    with tempfile.TemporaryDirectory(prefix="stk-") as name:
        folder = Path(name)
        (folder / "t").mkdir()
        (folder / "grid.toml").write_text(GRID.format(seed=seed, repeats=repeats, workload=f"{_WORKLOAD}:inference"))
        yield folder


class Driver:
    """One `stoker study run`. `lines` are the trials that it reported."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "stoker", "study", "run", "grid.toml", "--events", "--quiet", *arguments]
        environ = {**os.environ, "TMPDIR": str(folder / "t")}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in wait()
        self._process = subprocess.Popen(
            command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
        )
        self.lines: list[dict[str, Any]] = []
        self.pids: set[int] = set()
        self.errors = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def await_line(self) -> bool:
        """Read until one more trial is reported; False where the driver has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            return False
        self.lines.append(json.loads(line))
        return True

    def kill(self) -> None:
        """SIGKILL the driver alone, not its group; what it printed before is read."""
        with contextlib.suppress(psutil.Error):
            self.pids |= {child.pid for child in psutil.Process(self._process.pid).children(recursive=True)}
        self._process.send_signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """The exit status, when the driver has ended. Lines that the kill cut are left out."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output.read().splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    self.lines.append(json.loads(line))
        status = self._process.wait()
        with self._errors as errors:
            errors.seek(0)
            self.errors = errors.read().decode()
        return status


def kill_at_random(folder: Path, rng: random.Random, *, longest_s: float = 1.0) -> Driver:
    """A driver that is killed at a random moment after its first trial, and one time in four earlier."""
    driver = Driver(folder)
    if rng.random() < 0.25:
        time.sleep(rng.uniform(0.0, 3.0))
    elif driver.await_line():
        time.sleep(rng.uniform(0.0, longest_s))
    driver.kill()
    return driver


def survivors(pids: Iterable[int], *, wait_s: float = 30.0) -> list[int]:
    """Processes of these that are still there. They die a moment after their driver: a server that imports torch when
    its driver is killed learns of that when it is done."""
    deadline = time.monotonic() + wait_s
    left = list(pids)
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if _is_alive(pid)]
        time.sleep(0.05)
    return left


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def leftovers(folder: Path, pids: Iterable[int]) -> list[str]:
    """Temporary files of the drivers and their children, and shared memory that has a name."""
    known = {str(pid) for pid in pids}
    shm = Path("/dev/shm")
    shared = [each.name for each in shm.iterdir() if known & set(each.name.split("_"))] if shm.is_dir() else []
    kept = ("torchinductor_",)  # torch's own cache, which it keeps on purpose
    return [*(each.name for each in (folder / "t").iterdir() if not each.name.startswith(kept)), *shared]
