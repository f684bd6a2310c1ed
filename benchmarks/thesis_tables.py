"""The thesis' figures beside those of its small presets, from the trials that study_presets.py wrote."""

from collections.abc import Callable

import polars as pl
from common import RESULTS

from stoker.analysis import thesis

_HEAD = 2
"""Lines of a table before its first row."""


def beside() -> str:
    """Every figure that both have. Presets that were not run are left out."""
    lines = ["| figure | what | the thesis | here, small |", "| --- | --- | ---: | ---: |"]
    for name in thesis.PRESETS:
        path = RESULTS / "two-cores" / "studies" / f"{name}.csv"
        if not path.is_file():
            continue
        frame = pl.read_csv(path, infer_schema_length=None)
        both = [row for row in thesis.beside(name, frame).rows if row["thesis"] is not None and row["here"] is not None]
        lines += [f"| {row['figure']} | {row['what']} | {row['thesis']} | {row['here']} |" for row in both]
    return "\n".join(lines) if len(lines) > _HEAD else "Not measured yet: `python benchmarks/study_presets.py`."


TABLES: dict[str, Callable[[], str]] = {"thesis": beside}
