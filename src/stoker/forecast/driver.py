"""A GPU's driver in a simulated loop: it makes pinned memory, and while it does, nothing is launched."""

from stoker.forecast.cores import Cores, Then


class Driver:
    """Pinned memory that is kept and used again, and launches that wait while more of it is made."""

    def __init__(self, cpu: Cores) -> None:
        self._cpu = cpu
        self._free = 0
        self._began: float | None = None
        self._made_s = 0.0
        self._waiting: list[Then] = []

    @property
    def busy_s(self) -> float:
        """How long it has been making memory until now."""
        return self._made_s + (0.0 if self._began is None else self._cpu.now - self._began)

    def pinned(self, anew_s: float, then: Then) -> None:
        """Memory for a batch: a piece that is free, or a new one that takes `anew_s` to make."""
        if self._free:
            self._free -= 1
            then()
            return
        self._began = self._cpu.now
        self._cpu.compute(anew_s, lambda: self._made(then))

    def _made(self, then: Then) -> None:
        self._made_s, self._began = self.busy_s, None
        waiting, self._waiting = self._waiting, []
        then()
        for launch in waiting:
            launch()

    def give_back(self, after_s: float) -> None:
        """A piece is free again once the device has done what was queued when the batch was let go."""
        self._cpu.sleep(after_s, self._freed)

    def _freed(self) -> None:
        self._free += 1

    def launched(self, before_s: float, then: Then) -> None:
        """A step is many launches: whatever was made since `busy_s` was `before_s` held the host up for as long."""
        held_s = self.busy_s - before_s
        if self._began is not None:
            self._waiting.append(lambda: self.launched(self.busy_s - held_s, then))
        elif held_s > 0:
            self._cpu.sleep(held_s, lambda: self.launched(before_s + held_s, then))
        else:
            then()
