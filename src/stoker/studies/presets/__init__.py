"""The experiments of the seed documents as ready-made grids, each in full size and in a small one."""

from importlib.resources import files
from typing import Any

from stoker.errors import InputError
from stoker.studies.grid import Grid, parse_grid

SCALES = ("full", "small")


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
    return parse_grid(text, f"preset {name} ({scale})", default_name=name if scale == "full" else f"{name}-small")


def describe() -> list[dict[str, Any]]:
    """Every preset: what it reproduces, on which devices, its size, and how long it takes where that is known."""
    rows = []
    for name in preset_names():
        full, small = read_preset(name), read_preset(name, "small")
        rows.append(
            {
                "name": name,
                "title": full.title,
                **full.about,
                "small_devices": small.about.get("devices", ""),
                "small_differs": small.about.get("differs", ""),
                "full_tasks": len(full.tasks()) * full.repeats,
                "small_tasks": len(small.tasks()) * small.repeats,
                "full_estimate": full.about.get("time", "time unknown"),
                "small_estimate": small.about.get("time", "time unknown"),
            }
        )
    return rows
