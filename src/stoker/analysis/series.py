"""Rows for the charts of single results: a trial, a plan, a limit, predictions. Plain values, in the order drawn."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from stoker.analysis.ranks import figures
from stoker.analysis.spans import whole
from stoker.records import Attempt, Limit, Plan, Prediction, Probes, Record, Trial

Rows = list[dict[str, Any]]


class SeriesRules(Record, frozen=True):
    """How much of a long run is drawn."""

    batches: int = 400
    """Batches of a timeline: two bars a batch in the loop and one in a worker, which a browser zooms without delay."""
    waits: int = 2000
    """Bars of waits. Of longer runs, groups of batches share a bar, which has the longest wait of its group."""
    readings: int = 400
    """Readings of one gauge. Of more, every n-th is drawn, and always the largest of its group."""


RULES = SeriesRules()


def timeline_rows(trial: Trial, *, rules: SeriesRules = RULES) -> Rows:
    """A bar for each batch in its worker, and below for each wait and each step of the loop: lane, does, batch,
    begin_s, end_s. Of a long run the first batches. `turn` alternates, so that neighbours can be told apart."""
    log, line = trial.workers, trial.timeline
    rows: Rows = []
    count = min(rules.batches, len(line.got_s))
    lanes = sorted(set(log.worker)) if trial.setting.num_workers else []
    for lane, number in enumerate(lanes, start=1):
        own = [batch for batch, worker in enumerate(log.worker[:count]) if worker == number]
        for place, batch in enumerate(own):
            bar = _bar(f"worker {lane}", "load", batch, log.began_s[batch], log.ended_s[batch])
            rows.append({**bar, "turn": place % 2})
    if line.asked_s and line.asked_s[0] > 0:
        rows.append(_bar("loop", "start", 0, 0.0, line.asked_s[0]))
    for batch in range(count):
        rows.append(_bar("loop", "wait", batch, line.asked_s[batch], line.got_s[batch]))
        if batch < len(line.done_s):
            rows.append(_bar("loop", "step", batch, line.got_s[batch], line.done_s[batch]))
    return rows


def _bar(lane: str, does: str, batch: int, begin_s: float, end_s: float) -> dict[str, Any]:
    return {"lane": lane, "does": does, "batch": batch, "begin_s": begin_s, "end_s": end_s, "turn": 0}


def wait_rows(trial: Trial, *, rules: SeriesRules = RULES) -> Rows:
    """How long the loop waited for each batch, in order: batch, wait_s."""
    stage = trial.stages.get("wait")
    samples = stage.samples_s if stage else ()
    size = -(-len(samples) // rules.waits) or 1
    return [{"batch": begin, "wait_s": max(samples[begin : begin + size])} for begin in range(0, len(samples), size)]


def stage_rows(trial: Trial) -> Rows:
    """Each stage's seconds and share: stage, clock, seconds, share. Named parts of a stage are left out."""
    span = whole(trial)
    return [
        {"stage": name, "clock": stage.clock, "seconds": stage.total_s, "share": span.share(name)}
        for name, stage in trial.stages.items()
        if "." not in name and stage.total_s > 0
    ]


def rank_rows(trial: Trial) -> Rows:
    """What each rank does in a step, once steady: rank, stage, seconds, share. The time in an exchange is divided into
    waiting for slower ranks (`idle`) and the exchange itself."""
    rows: Rows = []
    for each in figures(trial):
        spent = {**each.stages_s, "idle": each.idle_s, "exchange": each.exchange_s}
        period_s = max(each.period_s, 1e-12)
        rows += [
            {"rank": f"rank {each.rank}", "stage": name, "seconds": seconds, "share": seconds / period_s}
            for name, seconds in spent.items()
            if seconds > 0
        ]
    return rows


def transform_rows(trial: Trial) -> Rows:
    """What each named part of a stage takes, the longest first: transform, seconds, share of the workers' time."""
    span = whole(trial)
    rows = [
        {"transform": name.partition(".")[2], "seconds": stage.total_s, "share": span.share(name)}
        for name, stage in trial.stages.items()
        if "." in name
    ]
    return sorted(rows, key=lambda row: (-row["seconds"], row["transform"]))


def gauge_rows(trial: Trial, *, rules: SeriesRules = RULES) -> Rows:
    """Readings over time of the gauges that say something: gauge, time_s, value."""
    rows: Rows = []
    for name, gauge in trial.gauges.items():
        title = GAUGES.get(name)
        if title is None or gauge.maximum <= 0:
            continue
        size = -(-len(gauge.samples) // rules.readings) or 1
        for begin in range(0, len(gauge.samples), size):
            place = max(range(begin, min(begin + size, len(gauge.samples))), key=lambda at: gauge.samples[at])
            rows.append({"gauge": title, "time_s": gauge.times_s[place], "value": gauge.samples[place]})
    return rows


GAUGES = {
    "gpu_utilisation": "GPU utilisation (share)",
    "gpu_memory_bytes": "GPU memory in use (bytes)",
    "cpu_cores": "CPU cores in use",
    "rss_bytes": "memory of all processes, RSS (bytes)",
    "pss_bytes": "memory of all processes, PSS (bytes)",
    "shm_bytes": "/dev/shm in use (bytes)",
}
"""Titles of the gauges that are drawn."""


def epoch_rows(trial: Trial) -> Rows:
    """Seconds of each epoch: epoch, seconds. Empty for a run of one."""
    ends = trial.timeline.epoch_s
    if len(ends) < 2:
        return []
    return [{"epoch": number, "seconds": seconds} for number, seconds in enumerate(ends, start=1)]


def item_rows(trial: Trial, *, bins: int = 40) -> Rows:
    """How long single items took in the workers, from the shortest to the longest: quantile, item_s."""
    samples = sorted(trial.workers.item_s)
    if len(samples) < 2:
        return []
    places = sorted({round(step * (len(samples) - 1) / bins) for step in range(bins + 1)})
    return [{"quantile": place / (len(samples) - 1), "item_s": samples[place]} for place in places]


# ---------------------------------------------------------------- plans and predictions


def landscape_rows(plan: Plan, landscape: Sequence[Prediction] = ()) -> Rows:
    """The predicted seconds of every setting, and how far each is from the best: cells for a heat map.

    `landscape` are predictions of further settings. Settings that a bound ruled out have that as their outcome.
    """
    times: dict[tuple[int, int], float] = {}
    for each in (*landscape, *(found.predicted for found in plan.candidates if found.predicted)):
        _keep_least(times, (each.setting.batch_size, each.setting.num_workers), each.total_s)
    for found in (*plan.candidates, *([plan.current] if plan.current else [])):
        _keep_least(times, (found.setting.batch_size, found.setting.num_workers), found.predicted_s)
    out = {(each.batch_size, each.num_workers): each for each in plan.ruled_out}
    rows: Rows = []
    best = min((seconds for place, seconds in times.items() if place not in out), default=None)
    for place in sorted({*times, *out}):
        row: dict[str, Any] = {"batch_size": place[0], "num_workers": place[1]}
        if place in out:
            row |= {"seconds": None, "regret": None, "outcome": "ruled out", "note": out[place].sentence}
        else:
            regret = times[place] / best - 1 if best else None
            row |= {"seconds": times[place], "regret": regret, "outcome": "predicted", "note": None}
        rows.append(row)
    return rows


def _keep_least(times: dict[tuple[int, int], float], place: tuple[int, int], seconds: float) -> None:
    times[place] = min(seconds, times.get(place, seconds))


def candidate_rows(plan: Plan) -> Rows:
    """Predicted beside measured, for each setting that ran: setting, predicted_s, measured_s, low, high, runs, role.

    `low` and `high` are the interval of the prediction where there is one.
    """
    rows: Rows = []
    current = plan.current
    for each in plan.candidates if current is None or current in plan.candidates else (*plan.candidates, current):
        if each.measured is None:
            continue
        setting = each.setting
        interval = each.predicted.interval_s if each.predicted else (None, None)
        mine = (plan.batch_size, plan.num_workers, plan.prefetch_factor)
        chosen = (setting.batch_size, setting.num_workers, setting.prefetch_factor) == mine
        rows.append(
            {
                "setting": setting_text(setting.batch_size, setting.num_workers),
                "batch_size": setting.batch_size,
                "num_workers": setting.num_workers,
                "predicted_s": each.predicted_s,
                "measured_s": each.measured.total_s,
                "low": interval[0],
                "high": interval[1],
                "runs": each.runs,
                "role": "plan" if chosen else "current" if each == current else "tried",
            }
        )
    return rows


def sample_rows(plan: Plan) -> Rows:
    """Every run of every setting: setting, run, seconds."""
    rows: Rows = []
    for each in plan.candidates:
        setting = each.setting
        for number, seconds in enumerate(each.measured.samples_s if each.measured else (), start=1):
            rows.append(
                {"setting": setting_text(setting.batch_size, setting.num_workers), "run": number, "seconds": seconds}
            )
    return rows


def remedy_rows(plan: Plan) -> Rows:
    """What each remedy is predicted to bring, the largest gain first: change, before_s, after_s, times_as_fast."""
    rows = [
        {
            "change": each.change,
            "before_s": each.before_s,
            "after_s": each.after_s,
            "times_as_fast": each.before_s / each.after_s,
        }
        for each in plan.remedies
        if each.after_s > 0
    ]
    return sorted(rows, key=lambda row: -row["times_as_fast"])


def ruled_out_rows(plan: Plan) -> Rows:
    """How many settings each bound ruled out: bound, settings, example."""
    rows: dict[str, dict[str, Any]] = {}
    for each in plan.ruled_out:
        setting = setting_text(each.batch_size, each.num_workers)
        row = rows.setdefault(
            each.bound, {"bound": each.bound, "settings": 0, "example": f"{setting}: {each.sentence}"}
        )
        row["settings"] += 1
    return list(rows.values())


def prediction_rows(predictions: Iterable[Prediction]) -> Rows:
    """Cells for a heat map of predictions, with intervals and what limits each."""
    found = list(predictions)
    best = min((each.total_s for each in found), default=None)
    return [
        {
            "batch_size": each.setting.batch_size,
            "num_workers": each.setting.num_workers,
            "seconds": each.total_s,
            "regret": each.total_s / best - 1 if best else None,
            "outcome": "predicted",
            "low": each.interval_s[0],
            "high": each.interval_s[1],
            "items_per_s": each.steady_items_per_s,
            "first_batch_s": each.first_batch_s,
            "wait_share": each.wait_share,
            "note": f"limited by {each.limited_by}",
        }
        for each in found
    ]


def probe_rows(probes: Probes) -> Rows:
    """Seconds an item of each probing run, by what it was for: run, batch_size, num_workers, item_s."""
    rows: Rows = []
    for run in probes.runs:
        items = sum(run.items) or len(run.item_s)
        seconds = sum(run.device_s) if run.kind in ("step", "crowded") and run.device_s else run.total_s
        if items and seconds > 0:
            row = {"run": run.kind, "batch_size": run.batch_size, "num_workers": run.num_workers}
            rows.append({**row, "item_s": seconds / items})
    return rows


# ---------------------------------------------------------------- limits


def memory_rows(limit: Limit) -> Rows:
    """Memory over batch size: the model of it (`what` is `model`) and every try (its outcome)."""
    rows: Rows = []
    if limit.bytes_per_item > 0:
        top = max(limit.max_batch, limit.interval[1], *(each.batch_size for each in limit.probes), 1)
        for step in range(9):
            size = round(top * step / 8)
            rows.append({"batch_size": size, "bytes": limit.fixed_bytes + size * limit.bytes_per_item, "what": "model"})
    rows += [
        {"batch_size": each.batch_size, "bytes": _needed(limit, each), "what": each.outcome} for each in limit.probes
    ]
    return rows


def _needed(limit: Limit, each: Attempt) -> int:
    """What a try took. One that failed needed at least the budget, and its own peak is only how far it came."""
    return max(each.peak_bytes, each.reserved_bytes) if each.outcome == "done" else limit.gpu_memory_bytes


def part_rows(limit: Limit) -> Rows:
    """What the largest batch needs, by part: part, bytes."""
    rows: Rows = [
        {"part": "fixed (weights, gradients, optimizer)", "bytes": limit.fixed_bytes},
        {"part": f"{limit.max_batch} items", "bytes": limit.bytes_per_item * limit.max_batch},
        {"part": "left over", "bytes": limit.gpu_memory_bytes - limit.peak_bytes_at_max},
    ]
    return [row for row in rows if row["bytes"] > 0]


_SINCE = {"init": "model", "earlier_step": "earlier step", "step": "this step"}


def alive_rows(limit: Limit) -> Rows:
    """What is alive at the peak of a step, largest first: operator, since, bytes, tensors. An operator that is there
    with more than one origin has it in its name, so that each row is a bar of its own."""
    counts = Counter(each.operator for each in limit.alive)
    return [
        {
            "operator": each.operator if counts[each.operator] == 1 else f"{each.operator} ({_SINCE[each.since]})",
            "since": _SINCE[each.since],
            "bytes": each.bytes,
            "tensors": each.tensors,
        }
        for each in limit.alive
    ]


def setting_text(batch_size: Any, num_workers: Any) -> str:
    """`batch 128, 8 workers`."""
    parts = [] if batch_size is None else [f"batch {batch_size:,}"]
    if num_workers is not None:
        parts.append("1 worker" if num_workers == 1 else f"{num_workers} workers")
    return ", ".join(parts)
