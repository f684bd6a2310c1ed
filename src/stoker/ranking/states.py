"""Outputs of a block for all items, stored: in memory while they fit, otherwise in files that are gone afterwards."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import torch

from stoker.errors import MachineError
from stoker.ranking.supply import Loaded
from stoker.workload.blocks.state import clone, state_bytes


class StateStore:
    """Batches of states, given back in order. A context manager: leaving it removes the files."""

    def __init__(self, limit_bytes: int) -> None:
        self._left_bytes = limit_bytes
        self._batches: list[Loaded | tuple[Path, Loaded]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._batches = []
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, loaded: Loaded) -> None:
        """Store a batch. Raises MachineError if the disk is full."""
        size = state_bytes(loaded.inputs)
        if size <= self._left_bytes:
            self._left_bytes -= size
            self._batches.append(loaded)
            return
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="stoker-states-")
        path = Path(self._folder.name) / f"{len(self._batches)}.pt"
        try:
            torch.save(loaded.inputs, path)
        except (OSError, RuntimeError) as error:
            raise MachineError(
                f"the outputs of the blocks before the part do not fit into {self._folder.name} ({error}): allow more "
                "--host-memory, or set TMPDIR to a larger disk"
            ) from None
        self._batches.append((path, loaded._replace(inputs=None)))

    def batches(self) -> Iterator[Loaded]:
        for each in self._batches:
            if isinstance(each, Loaded):
                yield each._replace(inputs=clone(each.inputs)) if each.inputs is not None else each
            else:
                path, loaded = each
                yield loaded._replace(inputs=_read(path))


def _read(path: Path) -> Any:
    """A stored state. It is ours, and still only tensors are read from it."""
    return torch.load(path, map_location="cpu", weights_only=True)
