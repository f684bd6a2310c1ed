"""How long the GPU takes for the stages of a step, by events on its stream. Nothing here waits for the GPU."""

import sys
from typing import Any

_EVERY = 4
"""One step in four is timed: recording the eight events of a step takes about as long as all other hooks together."""
_MOST_PENDING = 256


class GpuTimes:
    """Samples of [asked_ns of the row, stage, nanoseconds]."""

    def __init__(self) -> None:
        self._asked = self._count = 0
        self._began: dict[str, Any] = {}
        self._pending: list[tuple[int, str, Any, Any]] = []
        self._pool: list[Any] = []

    def begin(self, asked: int) -> None:
        """A step begins."""
        self._asked, self._began = 0, {}
        cuda = sys.modules.get("torch.cuda")
        if cuda is None or not cuda.is_initialized():
            return
        self._count += 1
        if self._count % _EVERY == 0 and len(self._pending) < _MOST_PENDING:
            self._asked = asked
            self.start("before")

    def start(self, stage: str) -> None:
        if self._asked and not sys.modules["torch.cuda"].is_current_stream_capturing():
            self._began[stage] = self._mark()

    def end(self, stage: str) -> None:
        if not self._asked:
            return
        began = self._began.pop(stage, None)
        if began is not None and not sys.modules["torch.cuda"].is_current_stream_capturing():
            self._pending.append((self._asked, stage, began, self._mark()))

    def ready(self) -> list[list[Any]]:
        """The samples that the GPU has finished since the last call."""
        samples = []
        while self._pending and self._pending[0][3].query():
            asked, stage, began, ended = self._pending.pop(0)
            samples.append([asked, stage, int(began.elapsed_time(ended) * 1e6)])
            self._pool += (began, ended)
        return samples

    def _mark(self) -> Any:
        event = self._pool.pop() if self._pool else sys.modules["torch.cuda"].Event(enable_timing=True)
        event.record()
        return event
