"""Reads the weights file of the next candidate beside the present one's computing."""

import threading
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from stoker.machine import pagecache
from stoker.workload import checkpoint


@dataclass(frozen=True)
class Read:
    """A weights file in memory. `resident` is the share of it that the page cache held before."""

    state: checkpoint.State
    seconds: float
    resident: float


class Reader:
    """Reads at most one file ahead, in a thread."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._thread: threading.Thread | None = None
        self._read: Read | None = None
        self._error: Exception | None = None

    def start(self, path: Path | None) -> None:
        """Begin to read a file, if there is one and nothing is being read."""
        if path is None or self._path is not None:
            return
        self._path = path
        self._thread = threading.Thread(target=self._run, args=(path,), name="stoker-weights", daemon=True)
        self._thread.start()

    def get(self, path: Path) -> Read:
        """The file's tensors: what was read ahead, or read now. Raises InputError as `checkpoint.read` does."""
        if self._path != path or self._thread is None:
            return read(path)
        self._thread.join()
        found, error = self._read, self._error
        self.drop(path)
        if error is not None:
            raise error
        assert found is not None
        return found

    def drop(self, path: Path | None) -> None:
        """Forget what was read of a file."""
        if path is not None and self._path == path:
            if self._thread is not None:
                self._thread.join()
            self._path = self._thread = self._read = self._error = None

    def _run(self, path: Path) -> None:
        try:
            self._read = read(path)
        except Exception as error:
            self._error = error


def read(path: Path) -> Read:
    """Read a weights file whole. Files that are mapped into memory are brought into the page cache first: otherwise the
    time of reading would be part of whatever first touches the weights."""
    resident = pagecache.resident([path]) if path.is_file() else 0.0
    began = perf_counter()
    if path.is_file() and path.suffix == ".safetensors":
        pagecache.warm([path])
    state = checkpoint.read(path)
    return Read(state, perf_counter() - began, resident)
