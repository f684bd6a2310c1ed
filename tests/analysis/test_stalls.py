"""What preparing and fetching data add to a loop, from three runs of it."""

from typing import Any

import pytest

from stoker.analysis.stalls import fetch_share, preparation_share
from stoker.records import Extent, Setting, Stalls, Subject, Trial

SUBJECT = Subject(name="made", model="none", data="made", mode="infer", device="cpu", items=8, parameters=0)


@pytest.mark.parametrize(
    ("memory_s", "cached_s", "cold_s", "preparation", "fetch"),
    [
        (1.0, 3.0, 4.0, 0.5, 0.25),
        (1.0, 1.0, 2.0, 0.0, 0.5),
        (1.0, 4.0, 2.0, 0.75, 0.0),
        (2.0, 1.0, 1.0, 0.0, 0.0),
    ],
)
def test_shares_are_of_the_longest_run_and_never_negative(
    memory_s: float, cached_s: float, cold_s: float, preparation: float, fetch: float, monkeypatch: Any
) -> None:
    def took(seconds: float) -> Trial:
        return Trial(outcome="done", workload=SUBJECT, setting=Setting(), extent=Extent(), total_s=seconds)

    monkeypatch.setattr("stoker.analysis.stalls.loop_s", lambda trial: trial.total_s)
    found = Stalls(memory=took(memory_s), cached=took(cached_s), cold=took(cold_s))
    assert (preparation_share(found), fetch_share(found)) == (preparation, fetch)
