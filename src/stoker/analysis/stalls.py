"""Shares of a cold run that preparing and fetching data take, from three runs of one setting."""

from stoker.analysis.spans import whole
from stoker.records import Stalls, Trial


def loop_s(trial: Trial) -> float:
    """Seconds of the loop, without starting and stopping workers."""
    span = whole(trial)
    return span.seconds - span.loop_s.get("start", 0.0) - span.loop_s.get("stop", 0.0)


def preparation_share(stalls: Stalls) -> float:
    """What decoding, transforming and the rest of loading add when every file is in the page cache."""
    return max(0.0, loop_s(stalls.cached) - loop_s(stalls.memory)) / _longest_s(stalls)


def fetch_share(stalls: Stalls) -> float:
    """What reading the files from storage adds to that."""
    return max(0.0, loop_s(stalls.cold) - loop_s(stalls.cached)) / _longest_s(stalls)


def _longest_s(stalls: Stalls) -> float:
    """The cold run includes everything; on a busy machine the cached run may still have taken longer."""
    return max(loop_s(stalls.cold), loop_s(stalls.cached))
