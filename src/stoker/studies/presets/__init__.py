"""The experiments of the seed documents as ready-made grids, each in full size and in a small one.

A workload of their own is in a file of this folder, which a grid names as `presets/FILE.py:function`.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any

from stoker.errors import InputError
from stoker.studies.grid import Grid, parse_grid

SCALES = ("full", "small")
ABOUT = ("reproduces", "devices", "differs", "time")
"""What every preset says of itself."""


def preset_names() -> list[str]:
    """The names of all presets."""
    names = (entry.name for entry in files(__name__).joinpath("full").iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def read_preset(name: str, scale: str = "full") -> Grid:
    """The grid of a preset. The small one has a name of its own, so that both may share a store."""
    if scale not in SCALES:
        raise InputError(f"no such scale: {scale!r}; choose {', '.join(SCALES)}")
    if name not in preset_names():
        raise InputError(f"no such preset: {name!r}; choose {', '.join(preset_names())}")
    text = files(__name__).joinpath(scale, f"{name}.toml").read_text(encoding="utf-8")
    text = text.replace('"presets/', f'"{Path(__file__).parent.as_posix()}/')
    return parse_grid(text, f"preset {name} ({scale})", default_name=name if scale == "full" else f"{name}-small")


def describe() -> list[dict[str, Any]]:
    """Every preset: what it reproduces, and for both sizes its runs, its devices, how it differs from the published
    experiment, and how long it takes."""
    rows = []
    for name in preset_names():
        grids = {scale: read_preset(name, scale) for scale in SCALES}
        row: dict[str, Any] = {
            "name": name,
            "title": grids["full"].title,
            "reproduces": grids["full"].about["reproduces"],
        }
        for scale, grid in grids.items():
            shape = {part: grid.about[part] for part in ABOUT[1:]}
            tasks = len(grid.tasks())
            row[scale] = {"tasks": tasks, "runs": tasks * grid.repeats, "follows": bool(grid.generator), **shape}
        rows.append(row)
    return rows
