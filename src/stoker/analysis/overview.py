"""Rows for the charts of a study, from its trials frame. Plain values, in the order drawn.

Every row has `part`, the values of the axes that split the table and vary (data, device, …) as text, and `workload`.
Where a setting has more axes than batch size and workers, a cell is the best of the others, and `setting` names them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from stoker.analysis import regret as regrets
from stoker.analysis.accuracy import prediction_errors
from stoker.analysis.effects import effects
from stoker.analysis.frames import MISSING, cells, comparable, normalised, outcomes, stage_columns
from stoker.analysis.regret import with_regret
from stoker.analysis.series import Rows, setting_text
from stoker.analysis.times import first_batches, item_times, stage_shares, utilisation
from stoker.errors import InputError

_ALWAYS = ("batch_size", "num_workers")
AXES = {"num_workers": "workers", "prefetch_factor": "prefetch", "workload": "workload"}
"""Axes whose name in a chart is not that of the column."""
_TRANSFORMERS = ("vit", "swin", "maxvit", "deit", "beit", "bert", "gpt", "roberta", "distilbert", "t5", "llama", "clip")
"""How names of transformers begin, where the trials have no column `family`."""


class Overview:
    """A study's table, computed once: its cells with regrets, and the rows of each chart.

    `by_item` says that `seconds` of cells are seconds an item, because runs of a workload differ in their items.
    Raises InputError for a frame that cannot be analysed.
    """

    def __init__(self, frame: pl.DataFrame, *, machines: Mapping[str, str] | None = None) -> None:
        self.frame = normalised(frame)
        self._labels = {**_labels(self.frame), **(machines or {})}
        self._compared, self.by_item = comparable(self.frame)
        table = cells(self._compared, measures=_measures(self.frame))
        self.roles = table.roles
        rows = with_regret(table)
        self._varying = [name for name in self.roles.split if rows[name].n_unique() > 1]
        self._further = [name for name in self.roles.setting if name not in _ALWAYS]
        self.cells = self._named(rows)
        self.parts: list[str] = self.cells["part"].unique(maintain_order=True).to_list()
        self.workloads: list[str] = self.cells["workload"].unique(maintain_order=True).to_list()

    @property
    def part_title(self) -> str:
        """The axes that make the parts."""
        return ", ".join(name.replace("_", " ") for name in self._varying)

    def machine(self, fingerprint: str) -> str:
        """What a machine is called."""
        return self._labels.get(fingerprint, fingerprint)

    @property
    def done(self) -> int:
        """Cells that have a time."""
        return int(self.cells["seconds"].count())

    def _named(self, frame: pl.DataFrame) -> pl.DataFrame:
        """With `part`, `others` (the values of further axes of the setting) and `setting`, all as text."""
        records = frame.to_dicts()
        return frame.with_columns(
            pl.Series("part", [self._part(row) for row in records], dtype=pl.String),
            pl.Series("others", [_others(row, self._further) for row in records], dtype=pl.String),
            pl.Series("setting", [_setting(row, self._further) for row in records], dtype=pl.String),
        )

    def _part(self, row: Mapping[str, Any]) -> str:
        return " · ".join(self._value(name, row[name]) for name in self._varying if row.get(name) is not None)

    def _value(self, name: str, value: Any) -> str:
        if name == "machine":
            return self.machine(str(value))
        return str(value) if isinstance(value, str) else f"{name.replace('_', ' ')} {value}"

    # ------------------------------------------------------------ which setting

    def has_map(self) -> bool:
        """Whether batch size and workers both vary."""
        return all(name in self.roles.setting and self.cells[name].n_unique() > 1 for name in _ALWAYS)

    def heat_rows(self, part: str | None = None) -> Rows:
        """Cells over batch size and workers, the best of any other axes."""
        if not all(name in self.cells.columns for name in _ALWAYS):
            return []
        rows = self._of(part).sort("seconds", nulls_last=True, maintain_order=True)
        names = ["workload", "part", *_ALWAYS]
        found = rows.group_by(names, maintain_order=True).first().sort(names, nulls_last=True)
        columns = [*names, "seconds", "regret", "outcome"]
        frame = found.select(*columns, *([pl.col("others").alias("setting")] if self._has_others() else []))
        return frame.to_dicts()

    def _has_others(self) -> bool:
        return bool(self._further)

    def _of(self, part: str | None) -> pl.DataFrame:
        return self.cells if part is None else self.cells.filter(pl.col("part") == part)

    def best_rows(self) -> Rows:
        """The fastest cell of each workload in each part: part, workload, setting, seconds, batch_size, num_workers."""
        done = self.cells.filter(pl.col("seconds").is_not_null())
        found = done.sort("seconds", maintain_order=True).group_by(["part", "workload"], maintain_order=True).first()
        names = ["part", "workload", "setting", *(name for name in _ALWAYS if name in found.columns), "seconds"]
        return found.sort("part", "workload").select(names).to_dicts()

    def regret_rows(self, part: str | None = None) -> Rows:
        """Average and worst regret of each setting, the best first: part, setting, regret_mean, regret_worst, …"""
        return self._with_setting(regrets.regret(self._compared), part)

    def top_rows(self, part: str | None = None, *, n: int = 3) -> Rows:
        """How many workloads have each setting among their `n` fastest: part, setting, count."""
        return self._with_setting(regrets.top_counts(self._compared, n), part)

    def one_rows(self) -> Rows:
        """One setting for all workloads of each part: part, setting, regret_mean, regret_worst, worst_model, …"""
        return self._with_setting(regrets.one_for_all(self._compared), None)

    def _with_setting(self, frame: pl.DataFrame, part: str | None) -> Rows:
        if not frame.height or not self.roles.setting:
            return []
        found = self._named(frame)
        found = found if part is None else found.filter(pl.col("part") == part)
        hidden = {"others", *self.roles.split, *(name for name in self.roles.setting if name not in _ALWAYS)}
        return found.select(
            ["part", "setting", *(n for n in found.columns if n not in {*hidden, "part", "setting"})]
        ).to_dicts()

    def effect_rows(self) -> Rows:
        """What each value of each axis does to the time, all else equal: axis, value, reference, ratio, …, pairs."""
        frame = effects(self._compared)
        rows = [row for row in self._named(frame).to_dicts() if row["ratio"] is not None]
        names = ("part", "axis", "value", "reference", "ratio", "ratio_low", "ratio_high", "fastest", "pairs")
        found: Rows = []
        for place, row in enumerate(rows):
            split = row["axis"] in self.roles.split
            axis = AXES.get(row["axis"], row["axis"].replace("_", " "))
            named = axis if split or not row["part"] else f"{axis} ({row['part']})"
            figures = {name: row[name] for name in names}
            found.append({**figures, "axis": named, "part": "" if split else row["part"], "place": place})
        return found

    # ------------------------------------------------------------ slices

    def slice_rows(self, part: str, axis: str, *, fixed: str, value: Any) -> Rows:
        """Times over one axis where the other has one value: workload, axis, seconds, regret."""
        rows = self.heat_rows(part)
        return [
            {name: row[name] for name in ("workload", "part", fixed, axis, "seconds", "regret")}
            for row in rows
            if row[fixed] == value and row["seconds"] is not None
        ]

    def workload_rows(self, workload: str) -> Rows:
        """One workload over both axes, cells with a time only."""
        return [row for row in self.heat_rows() if row["workload"] == workload and row["seconds"] is not None]

    def middle(self, part: str, axis: str) -> Any:
        """The value of an axis at which to cut: that of the best setting for all workloads, else the middle value."""
        for row in self.one_rows():
            if row["part"] == part and row.get(axis) is not None:
                return row[axis]
        values = sorted(value for value in self.cells[axis].unique().to_list() if value is not None)
        return values[len(values) // 2] if values else None

    def widest(self) -> str | None:
        """The workload whose slowest setting is the furthest from its fastest."""
        found = self.cells.filter(pl.col("regret").is_not_null()).sort("regret", "workload", descending=[True, False])
        return str(found["workload"][0]) if found.height else None

    # ------------------------------------------------------------ where the time goes

    def stage_rows(self, *, clock: str = "loop") -> Rows:
        """Stages by workload, batch size and part, means over the other axes: stage, seconds, share."""
        if not stage_columns(self.frame):
            return []
        found = self._named(stage_shares(self.frame)).filter(
            (pl.col("clock") == clock) & ~pl.col("stage").str.contains(".", literal=True)
        )
        by = ["part", "workload", *(["batch_size"] if "batch_size" in found.columns else []), "stage"]
        grouped = found.group_by(by, maintain_order=True).agg(
            pl.col("stage_s").mean().alias("seconds"), pl.col("share").mean()
        )
        return grouped.filter(pl.col("seconds") > 0).to_dicts()

    def item_rows(self) -> Rows:
        """Seconds an item over batch size, the least of the other axes: part, workload, family, batch_size, item_s.

        They are of the whole run, or, where `warmed_up`, after the warm-up.
        """
        times = self._item_seconds()
        if times is not None and self.warmed_up:
            times = times.with_columns(pl.col("steady_item_s").alias("item_s"))
        if times is None or not {"batch_size", "item_s"} <= set(times.columns):
            return []
        by = ["part", "workload", "batch_size"]
        least = (
            times.filter(pl.col("item_s").is_not_null()).group_by(by, maintain_order=True).agg(pl.col("item_s").min())
        )
        families = self._families()
        rows = least.sort(by).to_dicts()
        return [{**row, "family": families.get(row["workload"], family_of(row["workload"]))} for row in rows]

    @property
    def warmed_up(self) -> bool:
        """Whether runs have batches that warm up and times after these, or no other times."""
        columns = self.frame.columns
        if "steady_item_s" not in columns or not self.frame["steady_item_s"].count():
            return False
        warmup = self.frame["warmup"] if "warmup" in columns else pl.Series([0])
        return not self.done or (warmup.dtype.is_numeric() and bool((warmup > 0).any()))

    def _item_seconds(self) -> pl.DataFrame | None:
        """Cells with `item_s`: the run's time over its items."""
        for items in ("items", "run_items"):
            if items in self.frame.columns and self.frame[items].null_count() < self.frame.height:
                frame = self.frame if items == "items" else self._with_run_items()
                return self._named(item_times(frame))
        return self._named(item_times(self.frame)) if "steady_item_s" in self.frame.columns else None

    def _with_run_items(self) -> pl.DataFrame:
        """Every trial's own count of items beside its key: a grid that counts batches has none of its own."""
        return self.frame.drop("items", strict=False).rename({"run_items": "items"})

    def _families(self) -> dict[str, str]:
        if "family" not in self.frame.columns:
            return {}
        pairs = self.frame.select("workload", "family").drop_nulls().unique()
        return dict(pairs.iter_rows())

    def first_batch_rows(self) -> Rows:
        """Latency of the first batch over workers and batch size, medians over workloads: part, …, latency_s."""
        if "first_batch_s" not in self.frame.columns or not self.frame["first_batch_s"].count():
            return []
        if not all(name in self.roles.setting for name in _ALWAYS):
            return []
        # The store counts from the start of the run; published figures have the wait alone.
        frame = self.frame.drop("start_s", strict=False)
        found = self._named(first_batches(frame)).filter(pl.col("latency_s").is_not_null())
        by = ["part", "batch_size", "num_workers"]
        return found.group_by(by).agg(pl.col("latency_s").median()).sort(by).to_dicts()

    def gauge_rows(self) -> Rows:
        """Gauges over batch size and workers, medians over workloads: gauge, batch_size, num_workers, value."""
        axes = [name for name in _ALWAYS if name in self.cells.columns]
        if len(axes) < 2:
            return []
        rows = self._utilisation(axes)
        for name, title in _GAUGES.items():
            if name in self.cells.columns and self.cells[name].count():
                value = (
                    self.cells.filter(pl.col(name).is_not_null())
                    .group_by(axes)
                    .agg(pl.col(name).median().alias("value"))
                )
                rows += [{"gauge": title, **row} for row in value.sort(axes).to_dicts()]
        return rows

    def _utilisation(self, axes: Sequence[str]) -> Rows:
        """The share of the run in which the device computes."""
        try:
            found = utilisation(self.frame).filter(pl.col("utilisation").is_not_null())
        except InputError:
            return []
        value = found.group_by(axes).agg(pl.col("utilisation").median().alias("value")).sort(axes)
        return [{"gauge": COMPUTING, **row} for row in value.to_dicts()]

    # ------------------------------------------------------------ predictions, limits, comparisons

    def prediction_rows(self) -> Rows:
        """Predicted beside measured: part, workload, setting, predicted_s, seconds, error."""
        if "predicted_s" not in self.frame.columns or not self.frame["predicted_s"].count():
            return []
        found = self._named(prediction_errors(self.frame)).filter(pl.col("error").is_not_null())
        return found.select("part", "workload", "setting", "predicted_s", "seconds", "error").to_dicts()

    def limit_rows(self) -> Rows:
        """The largest batch of each workload in each part: part, workload, largest, first_failed."""
        found = self._named(regrets.batch_limits(self.frame)).filter(pl.col("largest").is_not_null())
        return found.select("part", "workload", "largest", "first_failed").to_dicts()

    def outcomes(self) -> dict[str, int]:
        """How many trials ended how, earlier attempts left out; and the cells that no trial has."""
        found: dict[str, int] = {}
        for row in outcomes(self.frame).to_dicts():
            if row["trials"]:
                found[row["outcome"]] = found.get(row["outcome"], 0) + row["trials"]
        missing = int((self.cells["outcome"] == MISSING).sum())
        return {**found, **({MISSING: missing} if missing else {})}

    def problems(self, most: int = 8) -> Rows:
        """What failed trials said, the most frequent first: problem, trials."""
        if "problem" not in self.frame.columns:
            return []
        found = self.frame.filter((pl.col("outcome") != "done") & pl.col("problem").is_not_null())
        counted = found.group_by("outcome", "problem").agg(pl.len().alias("trials"))
        return counted.sort(["trials", "problem"], descending=[True, False]).head(most).to_dicts()


def compared_rows(ours: pl.DataFrame, theirs: pl.DataFrame) -> Rows:
    """The same settings of two studies: workload, data, batch_size, num_workers, ours, theirs, ratio, unit.

    `unit` is `run` where both have the same number of items: seconds of the whole run. Else it is `item`: seconds an
    item. Where one of them has no times of whole runs, both count by their time an item after the warm-up (`steady`).
    Studies of the largest batch are compared by that (`batch`). Machines and other splitting axes are not
    compared, because they are what differs: a study with several values of those counts by its best. Runs of a number
    of `batches` are compared with runs of as many where both studies have such runs.
    """
    steady = not (_has_runs(ours) and _has_runs(theirs))
    by_batches = all("batches" in frame.columns and frame["batches"].count() for frame in (ours, theirs))
    names = ("workload", "data", "mode", *(["batches"] if by_batches else []), *_ALWAYS)
    left, right = (_comparable(frame, names, steady=steady) for frame in (ours, theirs))
    if ("largest" in left.columns) != ("largest" in right.columns):
        return []
    on = [name for name in names if name in left.columns and name in right.columns]
    joined = left.join(right, on=on, suffix="_theirs", how="inner", nulls_equal=True)
    rows: Rows = []
    for row in joined.sort(on).to_dicts():
        mine, them, unit = _pair(row)
        unit = "steady" if steady and unit == "run" else unit
        setting = setting_text(row.get("batch_size"), row.get("num_workers")) or str(row["workload"])
        named = {name: row[name] for name in on}
        rows.append({**named, "setting": setting, "ours": mine, "theirs": them, "ratio": mine / them, "unit": unit})
    return rows


def _pair(row: Mapping[str, Any]) -> tuple[float, float, str]:
    """Ours, theirs, and what both are."""
    if "largest" in row:
        return row["largest"], row["largest_theirs"], "batch"
    items, others = row.get("items"), row.get("items_theirs")
    if items == others or not (items and others):
        return row["seconds"], row["seconds_theirs"], "run"
    return row["seconds"] / items, row["seconds_theirs"] / others, "item"


def _has_runs(frame: pl.DataFrame) -> bool:
    """Whether any time of a whole run is known."""
    return "seconds" in frame.columns and frame["seconds"].count() > 0


def _comparable(frame: pl.DataFrame, known: Sequence[str], *, steady: bool) -> pl.DataFrame:
    if "max_batch" in frame.columns and frame["max_batch"].count():
        limits = regrets.batch_limits(frame).filter(pl.col("largest").is_not_null())
        names = [name for name in ("workload", "data", "mode") if name in limits.columns]
        return limits.group_by(names, maintain_order=True).agg(pl.col("largest").max())
    if steady:
        if "steady_item_s" not in frame.columns:
            return frame.clear().select(name for name in ("workload", "model") if name in frame.columns)
        frame = frame.with_columns(pl.col("steady_item_s").alias("seconds"))
        frame = frame.drop(name for name in ("run_items", "items") if name in frame.columns)
    table = cells(frame, measures=[name for name in ("run_items",) if name in frame.columns])
    rows = table.rows.filter(pl.col("seconds").is_not_null())
    counts = [name for name in ("items", "run_items") if name in rows.columns]
    if counts:
        rows = rows.with_columns(pl.coalesce(counts).alias("items"))
    present = [name for name in known if name in rows.columns and rows[name].count()]
    columns = [*present, "seconds", *(["items"] if "items" in rows.columns else [])]
    return rows.select(columns).sort("seconds").group_by(present, maintain_order=True).first()


def sample_keys(frame: pl.DataFrame, *, most: int = 6) -> list[str]:
    """Tasks whose raw samples a report shows: of the workload with the widest spread, its fastest setting first, then
    over the workers at that batch size."""
    overview = Overview(frame)
    done = overview.cells.filter(pl.col("seconds").is_not_null())
    if not done.height or "task_key" not in overview.frame.columns:
        return []
    workload = overview.widest()
    first = done.filter(pl.col("workload") == workload).sort("seconds", maintain_order=True).row(0, named=True)
    same = [name for name in (*overview.roles.split, "workload", *overview.roles.setting) if name != "num_workers"]
    kept = overview.frame.filter(pl.col("outcome") == "done")
    for name in same:
        kept = kept.filter(pl.col(name).eq_missing(pl.lit(first[name], dtype=kept.schema[name])))
    if "num_workers" in kept.columns and first.get("num_workers") is not None:
        kept = kept.with_columns((pl.col("num_workers") != first["num_workers"]).alias("_later")).sort(
            "_later", "num_workers", "repeat"
        )
    keys: list[str] = kept["task_key"].drop_nulls().unique(maintain_order=True).to_list()
    return keys[:most]


def family_of(workload: str) -> str:
    """`transformer` or `CNN`, by the name of a model; `device` for a device that sleeps."""
    name = workload.rpartition("/")[2].lower()
    if "sleep:" in workload:
        return "device"
    return "transformer" if name.startswith(_TRANSFORMERS) or "former" in name else "CNN"


def _labels(frame: pl.DataFrame) -> dict[str, str]:
    """Names of machines by fingerprint, where the frame brings them, as an exported table does."""
    if not {"machine", "machine_label"} <= set(frame.columns):
        return {}
    return dict(frame.select("machine", pl.col("machine_label").cast(pl.String)).drop_nulls().unique().iter_rows())


def _measures(frame: pl.DataFrame) -> Sequence[str]:
    return [name for name in _GAUGES if name in frame.columns and frame.schema[name].is_numeric()]


COMPUTING = "device computing, of the run (share)"
_GAUGES = {
    "gpu_utilisation_mean": "GPU utilisation, mean (share)",
    "gpu_memory_bytes_max": "GPU memory, maximum (bytes)",
    "allocated_bytes": "GPU memory of tensors, peak (bytes)",
    "cpu_cores_mean": "CPU cores in use, mean",
    "rss_bytes_max": "memory of all processes, maximum (bytes)",
    "shm_bytes_max": "/dev/shm in use, maximum (bytes)",
}


def _others(row: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_plain(row[name])}" for name in names if row.get(name) is not None)


def _setting(row: Mapping[str, Any], names: Sequence[str]) -> str:
    others = _others(row, names)
    known = setting_text(row.get("batch_size"), row.get("num_workers"))
    return ", ".join(each for each in (known, others) if each) or "the only setting"


def _plain(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
