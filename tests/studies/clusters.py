"""A real Ray cluster of two nodes on this machine, in a process of its own: tests import no Ray themselves.

`python -m tests.studies.clusters` starts it, prints its address, and obeys one command a line.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Nothing of a test listens beyond this machine."""


class TwoNodes:
    """A cluster of a head and one more node, one CPU each. `address` is for `--ray-address`."""

    def __init__(self, folder: Path) -> None:
        self.folder, errors = folder, folder / "errors"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.studies.clusters"],
            cwd=Path(__file__).parents[2],
            env={**os.environ, **LOOPBACK, "RAY_TMPDIR": str(folder), "TMPDIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors.open("w"),
            text=True,
        )
        self.address = self._answer()
        assert self.address, errors.read_text()

    def kill_node(self) -> None:
        """Kill all processes of the second node."""
        self._do("kill")

    def add_node(self, home: Path | None = None) -> None:
        """A second node again. `home` is what `~` means there."""
        self._do(f"add {home or ''}")

    def runners(self) -> set[int]:
        """The processes that run trials on the nodes, and those that they started."""
        with contextlib.suppress(psutil.Error):
            known = psutil.Process(self._process.pid).children(recursive=True)
            tops = [each for each in known if _line(each).startswith("ray::Runner")]
            return {each.pid for top in tops for each in [top, *top.children(recursive=True)]}
        return set()

    def leftovers(self) -> list[str]:
        """What trials have left in the folder for temporary files of the nodes."""
        return [each.name for each in self.folder.iterdir() if each.name.startswith("stoker-")]

    def close(self) -> None:
        self._process.communicate()

    def _do(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        assert self._answer() == "done"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@contextlib.contextmanager
def two_nodes() -> Iterator[TwoNodes]:
    """A cluster, and afterwards nothing of it. Its folder has a short name, as those of sockets must."""
    with tempfile.TemporaryDirectory(prefix="stk-ray-", dir="/tmp") as folder:
        cluster = TwoNodes(Path(folder))
        try:
            yield cluster
        finally:
            cluster.close()


def _say(answer: str) -> None:
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()


def _serve() -> None:
    from ray.cluster_utils import Cluster

    options: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster()
    cluster.add_node(**options)
    second = cluster.add_node(**options)
    _say(cluster.address)
    for line in sys.stdin:
        command, _, home = line.strip().partition(" ")
        if command == "kill":
            cluster.remove_node(second, allow_graceful=False)
        else:
            second = cluster.add_node(**options, **({"env_vars": {"HOME": home}} if home else {}))
        _say("done")
    cluster.shutdown()


if __name__ == "__main__":
    _serve()
