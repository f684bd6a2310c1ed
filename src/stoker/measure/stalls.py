"""Three runs of one setting tell preparation stalls from fetch stalls: data in memory, files cached, files cold."""

from collections.abc import Callable
from typing import Literal

import msgspec

from stoker.records import Extent, Stalls, Trial

SOURCES: tuple[Literal["memory", "cached", "cold"], ...] = ("memory", "cached", "cold")


def compare(run: Callable[[Extent], Trial], extent: Extent) -> Stalls:
    """Run the three, one after another; the first that does not finish ends it, and stands for those after it."""
    trials: list[Trial] = []
    for source in SOURCES:
        trials.append(run(msgspec.structs.replace(extent, source=source)))
        if trials[-1].outcome != "done":
            trials += [trials[-1]] * (len(SOURCES) - len(trials))
            break
    return Stalls(memory=trials[0], cached=trials[1], cold=trials[2])
