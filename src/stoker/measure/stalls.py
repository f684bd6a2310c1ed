"""Three runs of one setting tell preparation stalls from fetch stalls: data in memory, files cached, files cold."""

from collections.abc import Callable
from typing import Literal

import msgspec

from stoker.measure.spans import whole
from stoker.records import Extent, Record, Trial

SOURCES: tuple[Literal["memory", "cached", "cold"], ...] = ("memory", "cached", "cold")


class Stalls(Record, frozen=True):
    """The three trials. Shares are of the cold run's time, worker start and stop left out."""

    memory: Trial
    cached: Trial
    cold: Trial

    @property
    def finished(self) -> bool:
        return all(trial.outcome == "done" for trial in (self.memory, self.cached, self.cold))

    @property
    def preparation(self) -> float:
        """What decoding, transforming and the rest of loading add, with every file in the page cache."""
        return max(0.0, loop_s(self.cached) - loop_s(self.memory)) / self._whole_s

    @property
    def fetch(self) -> float:
        """What reading the files from storage adds to that."""
        return max(0.0, loop_s(self.cold) - loop_s(self.cached)) / self._whole_s

    @property
    def _whole_s(self) -> float:
        """The cold run, which has everything in it; a busy machine may have made the cached one longer."""
        return max(loop_s(self.cold), loop_s(self.cached))


def loop_s(trial: Trial) -> float:
    span = whole(trial)
    return span.seconds - span.loop_s.get("start", 0.0) - span.loop_s.get("stop", 0.0)


def compare(run: Callable[[Extent], Trial], extent: Extent) -> Stalls:
    """Run the three, one after another; the first that does not finish ends it, and stands for those after it."""
    trials: list[Trial] = []
    for source in SOURCES:
        trials.append(run(msgspec.structs.replace(extent, source=source)))
        if trials[-1].outcome != "done":
            trials += [trials[-1]] * (len(SOURCES) - len(trials))
            break
    return Stalls(memory=trials[0], cached=trials[1], cold=trials[2])
