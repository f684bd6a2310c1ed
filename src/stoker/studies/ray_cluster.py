"""A Ray cluster for this machine alone, started and ended by Stoker.

A keeper process has it: `python -m stoker.studies.ray_cluster CPUS`. It prints the address and waits until its standard
input closes. So the cluster ends with the process that asked for it, however that ends, and its folder with it. All its
servers listen on the loopback address, and ask for a token that only the two processes know.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from stoker.errors import MachineError

_LONGEST_FOLDER = 30
"""Characters in the name of the folder for temporary files: Ray adds 70 for its sockets, and a name may have 107."""
_OBJECTS_BYTES = 80 << 20
"""Of shared memory for results on their way: near the least that Ray accepts, so that the loaders have the rest."""

_token: str | None = None


class LocalCluster:
    """A cluster of one node. Raises MachineError if it cannot be started."""

    def __init__(self, cpus: int) -> None:
        self._environ = {name: os.environ.get(name) for name in _environment()}
        os.environ |= _environment()
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "stoker.studies.ray_cluster", str(cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the driver, which ends it in order
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (_home(), os.environ.get("PYTHONPATH"))))},
        )
        assert self._keeper.stdout is not None
        try:
            self.address = self._keeper.stdout.readline().decode().strip()
        except BaseException:
            self.close()
            raise
        if not self.address:
            _, noise = self._keeper.communicate()
            last = noise.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
            raise MachineError(f"a local Ray cluster could not be started: {last[0]}")

    def close(self) -> None:
        """End the cluster; its processes and its folder are gone when this returns."""
        with suppress(OSError):
            self._keeper.communicate()
        for name, value in self._environ.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _environment() -> dict[str, str]:
    """Variables that this process and the keeper must share before Ray is imported: for the loopback address alone, no
    statistics, and a token. Ray reads the token once, so one process keeps one."""
    global _token
    _token = _token or secrets.token_hex(32)
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # what Ray has for systems whose firewall would ask: loopback only
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": _token,
    }


def _home() -> str:
    """The folder that has this package."""
    return str(Path(__file__).parents[2])


def _keep(cpus: int) -> None:
    """Be the keeper."""
    import logging

    import ray

    place = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="stoker-ray-", dir=place if len(place) <= _LONGEST_FOLDER else "/tmp")
    try:
        context = ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=_OBJECTS_BYTES,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
        )
        print(context.address_info["gcs_address"], flush=True)  # noqa: T201 - this is what the keeper is for
        sys.stdin.read()
        ray.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _keep(int(sys.argv[1]))
