"""The figures of A. Tripathi's thesis, and beside each of them what a study of its preset found here.

`SOURCE` names the thesis and `MACHINE` its machines. Chapter 3 is known in words only, because its charts are pictures.
Models have the names that Stoker gives them: `conv3d` is `r3d_18`. Errors have Stoker's sign: (estimate − truth) /
truth, so that an estimate that is too low is negative.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from statistics import median
from typing import Any

import polars as pl

from stoker.analysis.frames import COMPUTE_STAGES
from stoker.errors import InputError
from stoker.records import Record
from stoker.units import format_bytes, format_seconds, parse_bytes

Row = dict[str, Any]

IMAGENET_ITEMS = 1_281_167
MANUAL_SHARE = 0.01
"""The manual search runs 0.5 to 2 % of an epoch's iterations at each size (5.5.1)."""
_GB = 10**9


class Beside(Record, frozen=True):
    """Rows with `figure`, `what`, `thesis` and `here`, all as text, and what makes the two sides differ."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]


@cache
def published() -> dict[str, Any]:
    """The figures as they are shipped, by name."""
    text = (files("stoker") / "data" / "published" / "thesis.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def source() -> str:
    return str(published()["source"])


def machine() -> str:
    return str(published()["machine"])


def preset_of(study: str) -> str | None:
    """The preset whose study this is, by its name; None for any other study."""
    name = study.removesuffix("-small")
    return name if name in _ROWS else None


def beside(study: str, frame: pl.DataFrame) -> Beside:
    """What the thesis says and what the trials of a preset's study say. Raises InputError for another study."""
    preset = preset_of(study)
    if preset is None:
        raise InputError(f"study {study!r} is none of the thesis' presets: {', '.join(_ROWS)}")
    rows = _ROWS[preset](_runs(frame)) if frame.height else []
    kept = [row for row in rows if row["here"] is not None or row["thesis"] is not None]
    machines = sorted(set(frame["machine_label"].drop_nulls())) if "machine_label" in frame.columns else []
    here = f"Here: {'; '.join(machines)}." if machines else ""
    notes = [f"There: {machine()}. {here}".strip(), *published()["notes"][preset], f"Source: {source()}."]
    return Beside(rows=tuple(kept), notes=tuple(notes))


# ---------------------------------------------------------------- trials as rows


def _runs(frame: pl.DataFrame) -> list[Row]:
    """The trials as plain rows, with the seconds of an epoch and the utilisation; None where they are unknown."""
    return [{**row, "net": _net(row), "epoch": _epoch_s(row), "used": _utilisation(row)} for row in frame.to_dicts()]


def _net(row: Mapping[str, Any]) -> str:
    """The model, also where a device that sleeps stands in for it."""
    return str(row.get("stands_for") or row.get("workload"))


def _epoch_s(row: Mapping[str, Any]) -> float | None:
    """Of several epochs those after the first count, because only it starts workers and fills caches."""
    return row.get("later_epoch_s") or row.get("seconds")


def _utilisation(row: Mapping[str, Any]) -> float | None:
    """The GPU's own figure where there is one, else the share of computing."""
    if row.get("gpu_utilisation_mean") is not None:
        return float(row["gpu_utilisation_mean"])
    computing = [row[f"{stage}_s"] for stage in COMPUTE_STAGES if row.get(f"{stage}_s") is not None]
    return sum(computing) / row["seconds"] if computing and row.get("seconds") else None


def _kind(runs: Sequence[Row], kind: str) -> list[Row]:
    return [row for row in runs if row.get("kind", kind) == kind]


def _by(runs: Sequence[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Runs by the values of these columns, in order."""

    def place(row: Row) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in names)

    def ordered(row: Row) -> tuple[Any, ...]:
        return tuple((value is None, value) for value in place(row))

    return {key: list(group) for key, group in groupby(sorted(runs, key=ordered), key=place)}


def _middle(runs: Sequence[Row], name: str) -> float | None:
    """The median of a figure over the repeats that are done."""
    values = [row[name] for row in runs if row.get("outcome") == "done" and row.get(name) is not None]
    return median(values) if values else None


def _row(figure: str, what: str, thesis: str | None, here: str | None) -> Row:
    return {"figure": figure, "what": what, "thesis": thesis, "here": here}


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.0%}"


def _ratio(value: float | None, base: float | None) -> str | None:
    return None if not value or not base else f"{value / base:.2f}"


def _said(name: str) -> str:
    """What the thesis says of a figure in words, without the figure's number."""
    return str(published()["words"][name]).partition(": ")[2]


# ---------------------------------------------------------------- chapter 3


def _epochs(runs: list[Row]) -> list[Row]:
    first, later = _middle(runs, "first_epoch_s"), _middle(runs, "later_epoch_s")
    longest, shortest = _middle(runs, "longest_epoch_s"), _middle(runs, "shortest_epoch_s")
    return [
        _row("3.1", "first epoch, over the median of the others", "a little above 1", _ratio(first, later)),
        _row("3.1", "longest of the others over the shortest", "about 1", _ratio(longest, shortest)),
    ]


def _over(figure: str, axis: str, noun: str, words: tuple[str, str, str]) -> Callable[[list[Row]], list[Row]]:
    """Time, utilisation and GPU memory over one axis. `words` are what the thesis says of the three."""

    def rows(runs: list[Row]) -> list[Row]:
        cells = _by(runs, axis)
        names = " → ".join(str(key[0]) for key in cells)
        times = [_middle(each, "epoch") for each in cells.values()]
        used = [_middle(each, "used") for each in cells.values()]
        memory = [_middle(each, "gpu_memory_bytes_max") for each in cells.values()]
        found = [
            _row(figure, f"time of an epoch, {noun} {names}", words[0], _chain([_time(each) for each in times])),
            _row(figure, f"utilisation, {noun} {names}", words[1], _chain([_percent(each) for each in used])),
        ]
        shown = [None if each is None else format_bytes(each) for each in memory]
        return [*found, _row(figure, f"GPU memory, {noun} {names}", words[2], _chain(shown))]

    return rows


def _time(value: float | None) -> str | None:
    return None if value is None else format_seconds(value)


def _chain(values: Sequence[str | None]) -> str | None:
    return " → ".join(value or "–" for value in values) if any(values) else None


def _pairs(runs: list[Row]) -> list[Row]:
    found = []
    said = {row["num_workers"]: row["batch_size"] for row in published()["best_batch"]}
    for (workers,), cells in _by(runs, "num_workers").items():
        used = {batch: _middle(each, "used") for (batch,), each in _by(cells, "batch_size").items()}
        known = {batch: value for batch, value in used.items() if value is not None}
        best = max(known, key=lambda batch: known[batch], default=None)
        here = f"{best} ({known[best]:.0%})" if best is not None else None
        thesis = str(said[workers]) if workers in said else None
        found.append(_row("3.3", f"batch of the highest utilisation, {workers} workers", thesis, here))
    batches = [batch for (batch,) in _by(runs, "batch_size")]
    published_ranges = published()["utilisation"]
    for batch, there in zip((min(batches), max(batches)), published_ranges, strict=True):
        values = [
            value
            for each in _by([row for row in runs if row["batch_size"] == batch], "num_workers").values()
            if (value := _middle(each, "used")) is not None
        ]
        here = f"{min(values):.0%} to {max(values):.0%} at batch {batch}" if values else None
        thesis = f"{there['lowest']:.0%} to {there['highest']:.0%} at batch {there['batch_size']}"
        found.append(_row("3.6", "utilisation over workers", thesis, here))
    return found


def _dram(runs: list[Row]) -> list[Row]:
    found = []
    memories = [memory for (memory,) in _by(runs, "memory_limit")]
    memories.sort(key=lambda memory: parse_bytes(str(memory)))
    said = {(row["batch_size"], row["memory"]): row["workers"] for row in published()["most_workers"]}
    batches = [batch for (batch,) in _by(runs, "batch_size")]
    for place, name in enumerate(("little", "much")):
        memory = memories[0] if place == 0 else memories[-1]
        for batch in batches:
            cells = [row for row in runs if row["batch_size"] == batch and row["memory_limit"] == memory]
            ran = [row["num_workers"] for row in cells if row.get("outcome") == "done"]
            tried = max((row["num_workers"] for row in cells), default=0)
            here = f"{max(ran)} of {tried}" if ran else "none"
            there = "20GB" if name == "little" else "128GB"
            workers = said.get((batch, there))
            thesis = f"{workers} of 64 ({there})" if workers is not None else None
            found.append(_row("table 3.1", f"most workers, batch {batch}, memory {memory}", thesis, here))
    if len(memories) > 1:
        found += [_memory_times(runs, batch, memories[0], memories[-1]) for batch in batches]
    return found


def _memory_times(runs: Sequence[Row], batch: int, little: Any, much: Any) -> Row:
    """The time with little memory over that with much, at the most workers that ran with both."""
    times: dict[Any, dict[int, float]] = {little: {}, much: {}}
    for (memory, workers), cells in _by([row for row in runs if row["batch_size"] == batch], *_MEMORY).items():
        seconds = _middle(cells, "epoch")
        if seconds is not None and memory in times:
            times[memory][workers] = seconds
    both = set(times[little]) & set(times[much])
    here = _ratio(times[little][max(both)], times[much][max(both)]) if both else None
    at = f", {max(both)} workers" if both else ""
    return _row("3.8", f"time with {little} over that with {much}, batch {batch}{at}", "about 1", here)


_MEMORY = ("memory_limit", "num_workers")


# ---------------------------------------------------------------- chapter 5


def _limits(runs: list[Row]) -> list[Row]:
    """5.1 and 5.2, with the error of the estimate where both are known."""
    found = []
    here = {
        (row["workload"], _whole_gb(row["gpu_memory"]), row.get("method")): row["max_batch"]
        for row in runs
        if row.get("outcome") == "done"
    }
    models = list(dict.fromkeys(row["workload"] for row in runs))
    said = {(row["model"], row["memory_gb"]): row for row in published()["limits"]}
    for memory in sorted({_whole_gb(row["gpu_memory"]) for row in runs}):
        for model in models:
            there = said.get((model, memory), {})
            ours = here.get((model, memory, "two-point"))
            truth = next((here[model, memory, each] for each in _TRUTH if (model, memory, each) in here), None)
            place = f"{model}, {memory} GB"
            table = "table 5.1" if memory == _TABLE_GB else "table 5.2"
            found.append(_row(table, f"{place}, two-point estimate", _text(there.get("estimated")), _text(ours)))
            found.append(_row("table 5.1", f"{place}, largest batch", _text(there.get("actual")), _text(truth)))
            if there.get("actual"):
                errors = (_error(there["estimated"], there["actual"]), _error(ours, truth))
                found.append(_row("table 5.1", f"{place}, error of the estimate", *errors))
    return found


_TRUTH = ("auto", "search", "trace")
_TABLE_GB = 16


def _whole_gb(memory: Any) -> int:
    """11 for `11GiB`: the thesis writes GB for what GPUs have."""
    size = parse_bytes(str(memory))
    return round(size / (2**30 if size % 2**30 == 0 else _GB))


def _text(value: Any) -> str | None:
    return None if value is None else f"{value:,}"


def _error(estimate: float | None, truth: float | None) -> str | None:
    return None if estimate is None or not truth else f"{(estimate - truth) / truth:+.1%}"


def _around(runs: list[Row]) -> list[Row]:
    """5.3 to 5.6: times beside the estimate's own, and the estimates by host memory."""
    found = []
    said = published()["around"]
    plans = [row for row in _kind(runs, "tune") if row.get("outcome") == "done"]
    for plan in plans:
        model = plan["net"]
        cells = _by([row for row in _kind(runs, "profile") if row["net"] == model], *_SETTING)
        base = _middle(cells.get((plan["batch_size"], plan["num_workers"]), []), "epoch")
        there = [row for row in said if row["model"] == model]
        memory = f", host memory {plan['host_memory']}" if len(plans) > 1 and plan.get("host_memory") else ""
        for place, name in enumerate(_PLACES):
            setting = _setting_at(place, plan["batch_size"], plan["num_workers"])
            each = cells.get(setting, [])
            here = _relative(_middle(each, "epoch"), base, _middle(each, "used"), setting) if each else None
            theirs = _published_at(there, place)
            table = f"table {there[0]['table']}" if there else "tables 5.3 to 5.5"
            found.append(_row(table, f"{model}: {name}{memory}", theirs, here))
    for plan in plans:
        model = plan["net"]
        amount = plan.get("host_memory")
        estimates: list[Row] = published()["by_memory"]
        same = next((row for row in estimates if (row["model"], row["memory"]) == (model, amount)), None)
        thesis = f"{same['batch_size']} × {same['num_workers']} workers" if same else None
        here = f"{plan['batch_size']} × {plan['num_workers']} workers"
        found.append(_row("table 5.6", f"{model}, host memory {amount}: the estimate", thesis, here))
    return found


_SETTING = ("batch_size", "num_workers")
_PLACES = (
    *("the estimate", "twice the workers", "half the workers"),
    *("smaller batch, as many workers", "smaller batch, twice the workers"),
)


def _setting_at(place: int, batch: int, workers: int) -> tuple[int, int]:
    """The settings that `thesis-workers-batch` runs around an estimate, in the order of its tables."""
    smaller = 1 << ((batch - 1).bit_length() - 1) if batch > 1 else 0
    return [
        (batch, workers),
        (batch, 2 * workers),
        (batch, workers // 2),
        (smaller, workers),
        (smaller, 2 * workers),
    ][place]


def _published_at(rows: Sequence[Row], place: int) -> str | None:
    estimate = next((row for row in rows if row.get("estimate")), None)
    if estimate is None:
        return None
    wanted = (estimate["num_workers"] * (1, 2, 0.5, 1, 2)[place], place < 3)
    found = next(
        (row for row in rows if (row["num_workers"], row["batch_size"] == estimate["batch_size"]) == wanted), None
    )
    if found is None:
        return None
    setting = (found["batch_size"], found["num_workers"])
    if found["seconds"] is None:
        return f"did not run ({setting[0]} × {setting[1]})"
    return _relative(found["seconds"], estimate["seconds"], found["utilisation"], setting)


def _relative(seconds: float | None, base: float | None, used: float | None, setting: tuple[int, int]) -> str | None:
    """The time over the estimate's, and the utilisation."""
    if seconds is None or not base:
        return f"did not run ({setting[0]} × {setting[1]})"
    return f"{seconds / base:.2f}{f', {used:.0%} used' if used is not None else ''} ({setting[0]} × {setting[1]})"


def _convergence(runs: list[Row]) -> list[Row]:
    """5.7, the tested batch less the usual one."""
    found = []
    said = published()["convergence"]
    for row in runs:
        if row.get("outcome") != "done":
            continue
        there = {each["batch_size"]: each for each in said if each["model"] == row["workload"]}
        usual, tested = there.get(row["batch_size"]), there.get(row["against"])
        name = str(row["workload"]).rpartition("/")[2].removesuffix(".py:workload")
        name += f", learning rate {row['scale_lr']}" if row.get("scale_lr", "none") != "none" else ""
        what = f"{name}, {row['against']} against {row['batch_size']}: "
        for figure, key, ours in _learnt(row):
            theirs = None
            if usual and tested:
                signed = f"{tested[key] - usual[key]:+.3g}" if key != "minutes" else f"{tested[key] / usual[key]:.2f}"
                theirs = f"{signed} ({usual[key]:g} → {tested[key]:g})"
            found.append(_row("table 5.7", what + figure, theirs, ours))
        if usual is None:
            found += [_row("table 5.7", f"{model}, {pair}", told, None) for model, pair, told in _published_pairs()]
    return list({(row["what"], row["here"]): row for row in found}.values())


def _learnt(row: Mapping[str, Any]) -> list[tuple[str, str, str | None]]:
    """For each figure of 5.7 what it is called, its name in the published rows, and how it differs here."""
    margin = {name: row.get(f"{name}_margin") for name in ("metric", "loss")}
    scale = row.get("metric_scale") or 1

    def told(before: Any, after: Any, difference: Any, width: Any, unit: float = 1) -> str | None:
        if before is None or after is None or difference is None:
            return None
        spread = f" ± {width / unit:.2g}" if width is not None else ""
        return f"{difference / unit:+.3g}{spread} ({before:.3g} → {after:.3g})"

    loss = told(
        row.get("validation_loss"), row.get("against_validation_loss"), row.get("loss_difference"), margin["loss"]
    )
    metric = told(row.get("metric"), row.get("against_metric"), row.get("metric_difference"), margin["metric"], scale)
    took = (row.get("train_s"), row.get("against_train_s"))
    time = f"{took[1] / took[0]:.2f}" if took[0] and took[1] else None
    return [
        ("validation loss", "validation_loss", loss),
        ("accuracy", "accuracy", metric),
        ("time of the training, as a ratio", "minutes", time),
    ]


def _published_pairs() -> list[tuple[str, str, str]]:
    """Every pair of 5.7, for a study that has neither model."""
    told = []
    rows: list[Row] = published()["convergence"]
    for model, pair in groupby(rows, key=lambda row: str(row["model"])):
        usual, tested = pair
        for key, name in (("validation_loss", "validation loss"), ("accuracy", "accuracy")):
            signed = f"{tested[key] - usual[key]:+.3g} ({usual[key]:g} → {tested[key]:g})"
            told.append((model, f"{tested['batch_size']} against {usual['batch_size']}: {name}", signed))
        ratio = f"{tested['minutes'] / usual['minutes']:.2f} ({usual['minutes']:g} → {tested['minutes']:g})"
        told.append((model, f"{tested['batch_size']} against {usual['batch_size']}: minutes", ratio))
    return told


def _search_time(runs: list[Row]) -> list[Row]:
    """5.8: the manual search by equation 5.2, and the iterations of the two-point method."""
    found = []
    said = {row["model"]: row for row in published()["search_time"]}
    limits = [row for row in _kind(runs, "limit") if row.get("outcome") == "done" and row.get("method") != "two-point"]
    two_points = {
        row["net"]: row["max_batch"]
        for row in _kind(runs, "limit")
        if row.get("method") == "two-point" and row.get("outcome") == "done"
    }
    for limit in limits:
        model = limit["net"]
        own = [row for row in _kind(runs, "profile") if row["net"] == model]
        manual = [row for row in own if row["batch_size"] >= _FIRST and row["num_workers"] > 0]
        points = [row for row in own if row["num_workers"] == 0]
        there = said.get(model, {})
        seconds = manual_seconds(manual)
        largest = max((row["batch_size"] for row in manual if row.get("outcome") == "done"), default=None)
        algorithm = [_middle(each, "seconds") for each in _by(points, "batch_size").values()]
        total = sum(each for each in algorithm if each is not None) if algorithm and all(algorithm) else None
        batch = two_points.get(model, limit["max_batch"])
        found += [
            _row("table 5.8", f"{model}, doubling: time", _time(there.get("manual_s")), _time(seconds)),
            _row("table 5.8", f"{model}, doubling: batch", _text(there.get("manual_batch")), _text(largest)),
            _row("table 5.8", f"{model}, two-point: time", _time(there.get("two_point_s")), _time(total)),
            _row("table 5.8", f"{model}, estimate: batch", _text(there.get("two_point_batch")), _text(batch)),
        ]
    return found


_FIRST = 32


def manual_seconds(runs: Sequence[Mapping[str, Any]]) -> float | None:
    """Equation 5.2: over the sizes that a search by doubling tries, the time of an iteration times the iterations.

    Of an epoch of ImageNet it runs 1 % at each size. None where a size has no time.
    """
    total = 0.0
    for (batch,), each in _by([dict(row) for row in runs], "batch_size").items():
        item_s = _middle(each, "steady_item_s")
        if item_s is None:  # of a set that is over after a batch or two the whole run is all there is
            seconds, items = _middle(each, "seconds"), _middle(each, "run_items")
            if not seconds or not items:
                return None
            item_s = seconds / items
        iterations = max(1, round(MANUAL_SHARE * IMAGENET_ITEMS / batch))
        total += item_s * batch * iterations
    return total or None


_ROWS: dict[str, Callable[[list[Row]], list[Row]]] = {
    "thesis-epochs": _epochs,
    "thesis-batch": lambda runs: _over(
        "3.2", "batch_size", "batch", (_said("batch"), _said("batch_utilisation"), _said("batch_memory"))
    )(runs),
    "thesis-pairs": _pairs,
    "thesis-workers": lambda runs: _over(
        "3.5", "num_workers", "workers", (_said("workers"), "rises", _said("workers_memory"))
    )(runs),
    "thesis-gpus": lambda runs: _over("3.7", "ranks", "GPUs", ("falls", "falls", "falls"))(runs),
    "thesis-dram": _dram,
    "thesis-limit": _limits,
    "thesis-workers-batch": _around,
    "thesis-convergence": _convergence,
    "thesis-search-time": _search_time,
}
PRESETS = tuple(_ROWS)
"""The thesis' presets."""
