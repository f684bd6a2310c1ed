"""Tables as text: what fits a terminal, and what must not be broken."""

import pytest
from msgspec.structs import replace

from stoker.records import Candidate, Measured, Setting, Verdict
from tests.records.test_documents import PLAN

SEEN = Measured(samples_s=(1.12, 1.2), run_s=(1.12, 1.2), items=8, first_batch_s=0.15, steady_items_per_s=300.0)


def candidate(batch_size: int, workers: int, ahead: int, **values: object) -> Candidate:
    setting = Setting(batch_size=batch_size, num_workers=workers, prefetch_factor=ahead)
    return Candidate(**{"setting": setting, "predicted_s": 1234.5, "measured": SEEN, **values})  # type: ignore[arg-type]


def test_a_plan_with_every_column_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    current = candidate(24, 1, 3, tied=True, updates=12_345)
    rows = (candidate(24, 4, 2, updates=12_345), candidate(2048, 2, 8, updates=999, measured=None), current)
    text = str(replace(PLAN, candidates=rows, current=current))
    table = [line for line in text.splitlines() if "updates" in line or "20 min" in line]
    assert len(table) == 4
    assert max(map(len, table)) <= 80
    assert "…" not in text, "no cell is cut"
    assert {"updates", "ahead", "measured"} <= set(table[0].split())
    assert "unfinished" in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_remedies_are_as_uncertain_as_the_verdict() -> None:
    doubtful = Verdict(bottleneck="decode", share=0.5, sentence="it decodes", uncertain=True, doubt="the host was busy")
    assert "What would help, as predicted:" in str(PLAN)
    assert "What would help, as predicted, which is uncertain, too:" in str(replace(PLAN, verdict=doubtful))
