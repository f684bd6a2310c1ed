"""Small tables of trials, and how tests read what comes back."""

from typing import Any

import polars as pl
from hypothesis import settings
from hypothesis import strategies as st

LAW = settings(deadline=None, max_examples=60)
"""For properties: no absolute time decides, and a frame costs several queries."""


def trials(*rows: tuple[Any, ...], columns: str = "model batch_size num_workers seconds", **fixed: Any) -> pl.DataFrame:
    """A frame with these rows. A text in place of seconds is the outcome of a trial that is not done."""
    names = columns.split()
    records = []
    for row in rows:
        record = {**fixed, "outcome": "done", **dict(zip(names, row, strict=True))}
        if isinstance(record.get("seconds"), str):
            record["outcome"], record["seconds"] = record["seconds"], None
        records.append(record)
    return pl.DataFrame(records, infer_schema_length=None)


def picked(frame: pl.DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """The rows of these columns."""
    return list(frame.select(names).iter_rows())


SECONDS = st.floats(0.01, 1000.0)
CELL: st.SearchStrategy[list[float | str]] = st.one_of(
    st.lists(st.one_of(SECONDS, st.sampled_from(["oom", "crashed", "failed"])), min_size=1, max_size=3),
    st.just([]),
)


@st.composite
def grids(draw: st.DrawFn, *, models: int = 3) -> pl.DataFrame:
    """Up to so many models on two kinds of data and two machines, a few settings, repeats; some cells fail or miss."""
    names = [f"model{number}" for number in range(draw(st.integers(1, models)))]
    sizes = draw(st.lists(st.sampled_from([16, 32, 64]), min_size=1, max_size=3, unique=True))
    workers = draw(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=2, unique=True))
    parts = draw(
        st.lists(st.tuples(st.sampled_from("AB"), st.sampled_from(["jpeg", "tensors"])), min_size=1, max_size=3)
    )
    rows: list[tuple[Any, ...]] = []
    for machine, data in dict.fromkeys(parts):
        for model in names:
            for size in sizes:
                for count in workers:
                    for repeat, seconds in enumerate(draw(CELL)):
                        rows.append((machine, data, model, size, count, repeat, seconds, draw(SECONDS)))
    if not rows:
        rows.append(("A", "jpeg", "model0", 16, 0, 0, draw(SECONDS), 1.0))
    columns = "machine data model batch_size num_workers repeat seconds predicted_s"
    return trials(*rows, columns=columns)
