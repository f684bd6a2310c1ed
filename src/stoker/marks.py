"""Marks in a dataset's code that say which stage runs: `with stoker.stage("read"): ...`.

Outside a profile a mark does nothing and costs next to nothing. Inside one, each process has one `Recorder`; marks
nest, and a stage's time is its own: what an inner mark takes is taken off the outer one.
"""

from threading import get_ident
from time import perf_counter


class Recorder:
    """Sums the seconds of each stage since the last `take`, for the thread that made it."""

    def __init__(self) -> None:
        self.thread = get_ident()
        self.names: list[str] = []
        self._began: list[float] = []
        self._inner: list[float] = []
        self._sums: dict[str, float] = {}
        self._outputs: dict[str, tuple[int, int]] = {}

    def enter(self, name: str) -> None:
        self.names.append(name)
        self._inner.append(0.0)
        self._began.append(perf_counter())

    def leave(self) -> float:
        """End the innermost stage; its whole duration, inner stages included."""
        whole = perf_counter() - self._began.pop()
        name = self.names.pop()
        self._sums[name] = self._sums.get(name, 0.0) + whole - self._inner.pop()
        if self._inner:
            self._inner[-1] += whole
        return whole

    def returned(self, name: str, size_bytes: int) -> None:
        """Count what a stage returned for an item."""
        count, whole = self._outputs.get(name, (0, 0))
        self._outputs[name] = (count + 1, whole + size_bytes)

    def take_outputs(self) -> dict[str, tuple[int, int]]:
        """How often each stage returned something since the last call, and the bytes of it all."""
        outputs, self._outputs = self._outputs, {}
        return outputs

    def take(self) -> dict[str, float]:
        """The sums so far; the next ones start from nothing."""
        sums, self._sums = self._sums, {}
        return sums


_recorder: Recorder | None = None


def record_into(recorder: Recorder | None) -> Recorder | None:
    """Make `recorder` the one that this process' marks report to, and return the one before; None switches them off."""
    global _recorder
    before, _recorder = _recorder, recorder
    return before


def recorder() -> Recorder | None:
    """The recorder of this thread, where it has one."""
    active = _recorder
    return active if active is not None and active.thread == get_ident() else None


class stage:  # noqa: N801 - reads as a statement: with stage("read")
    """Count what runs inside as the stage `name` of an item: read, decode, transform, or a name of your own."""

    __slots__ = ("_active", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._active: Recorder | None = None

    def __enter__(self) -> None:
        self._active = recorder()
        if self._active is not None:
            self._active.enter(self._name)

    def __exit__(self, *_: object) -> None:
        if self._active is not None:
            self._active.leave()
