"""The tables of `stoker profile`: one run, or the three runs of `--stalls`."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stoker.analysis import ranks
from stoker.analysis.interference import disturbance_note
from stoker.analysis.spans import Span, steady, whole
from stoker.analysis.stalls import fetch_share, loop_s, preparation_share
from stoker.records import Remedy, Stalls, Trial, Verdict, VerifiedRemedy
from stoker.report.console import batch_text, mode_text
from stoker.report.views.plan import remedy_lines, verdict_lines, verified_lines
from stoker.units import format_bytes, format_count, format_seconds, format_workers

_HIDE_BELOW = 0.002
_GAUGES = {
    "gpu_utilisation": ("GPU utilisation", "share"),
    "gpu_memory_bytes": ("GPU memory", "bytes"),
    "cpu_cores": ("CPU cores in use", "number"),
    "run_delay": ("threads that waited for a CPU", "number"),
    "rss_bytes": ("memory of all processes (RSS)", "bytes"),
    "pss_bytes": ("memory of all processes (PSS)", "bytes"),
    "shm_bytes": ("/dev/shm in use", "bytes"),
}


def profile_view(
    trial: Trial, verdict: Verdict | None, remedies: Sequence[Remedy], verified: Sequence[VerifiedRemedy] = ()
) -> RenderableType:
    """A finished trial with its loop, workers, gauges, verdict and remedies, or why a trial did not finish."""
    parts: list[RenderableType] = [_heading(trial)]
    if trial.outcome == "done":
        parts += [_loop_table(trial)]
        if trial.rank_logs:
            parts += [Text(), _rank_table(trial)]
        if whole(trial).worker_s:
            parts += [Text(), _worker_table(trial)]
        parts += [Text(), *_facts(trial)]
    disturbance = disturbance_note(trial) if verdict is None else None  # the verdict says it first
    notes = [*trial.notes, *([disturbance] if disturbance else [])]
    parts += [Text(f"note: {note}", style="yellow") for note in notes]
    if trial.problem is not None:
        parts.append(problem_view(trial))
    if verdict is not None:
        parts += [
            Text(),
            *verdict_lines(verdict),
            *remedy_lines(remedies, verdict),
            *verified_lines(verified),
        ]
    return Group(*parts)


def problem_view(trial: Trial) -> RenderableType:
    assert trial.problem is not None
    text = Text.assemble((trial.outcome.replace("_", " "), "bold red"), f": {trial.problem.sentence}")
    if trial.problem.where:
        text.append(f"\n  at {trial.problem.where}")
    if trial.problem.remedy:
        text.append(f"\n  {trial.problem.remedy}")
    return text


def _heading(trial: Trial) -> RenderableType:
    subject, setting, limit = trial.workload, trial.setting, trial.extent.memory_limit_bytes or 0
    extras = [
        name
        for name, on in (
            (setting.precision, setting.precision != "fp32"),
            ("pinned memory", setting.pin_memory),
            ("persistent workers", setting.persistent_workers),
            ("out of order", not setting.in_order),
            (f"workers by {setting.multiprocessing_context}", setting.multiprocessing_context and setting.num_workers),
            (f"{setting.worker_threads} threads in each worker", setting.worker_threads and setting.num_workers),
            (f"torch.set_num_threads({setting.threads})", setting.threads),
            (f"one update for {setting.accumulate} batches", setting.accumulate > 1),
            ("channels last", setting.channels_last),
            ("compiled", setting.compile),
            ("cudnn benchmark", setting.cudnn_benchmark),
            (f"{setting.ranks} ranks ({setting.parallel})", setting.ranks > 1),
            (f"data {trial.extent.source}", trial.extent.source != "files"),
            (f"memory limited to {format_bytes(limit)}", limit),
        )
        if on
    ]
    prefetch = f", prefetch {setting.prefetch_factor}" if setting.num_workers else ""
    first = Text.assemble(
        (subject.name, "bold"),
        f" · {subject.data} · {mode_text(subject.mode, subject.mode_reason)} on {subject.device}",
    )
    workers = format_workers(setting.num_workers)
    batch = batch_text(trial)
    second = f"{batch}, {workers}{prefetch}" + "".join(f", {extra}" for extra in extras)
    return Group(first, Text(second), Text())


def _loop_table(trial: Trial) -> Table:
    """The wall-clock time by stage, of the whole run and of its steady state."""
    run, later = whole(trial), steady(trial)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("the loop", "whole run", "share", "steady", "share", "a batch"):
        table.add_column(title, justify="left" if title == "the loop" else "right", no_wrap=True)
    first_s = trial.first_batch_s or 0.0
    rows = {"start": run.loop_s.get("start", 0.0), "first batch": first_s}
    rows |= {name: seconds for name, seconds in run.loop_s.items() if name != "start"}
    rows["wait"] = rows.get("wait", 0.0) - first_s
    for name, seconds in rows.items():
        if seconds / run.seconds < _HIDE_BELOW and name not in ("wait", "forward"):
            continue
        table.add_row(name, format_seconds(seconds), f"{seconds / run.seconds:.1%}", *_steady_cells(later, name))
    table.add_section()
    ends = ("–",) * 3
    if later:
        ends = (format_seconds(later.seconds), "100.0%", format_seconds(later.seconds / later.batches))
    table.add_row("total", format_seconds(run.seconds), "100.0%", *ends)
    rate = f"{later.items_per_s:,.1f}" if later else "–"
    table.add_row("items/s", f"{run.items_per_s:,.1f}", "", rate, "", "")
    return table


def _steady_cells(span: Span | None, name: str) -> tuple[str, str, str]:
    if span is None or name not in span.loop_s:
        return "–", "–", "–"
    seconds = span.loop_s[name]
    return format_seconds(seconds), f"{span.share(name):.1%}", format_seconds(seconds / span.batches)


def _worker_table(trial: Trial) -> Table:
    """The time of the worker processes by stage; without workers, the loading time in the loop's own process."""
    run = whole(trial)
    where = "in the workers" if trial.setting.num_workers else "in the loop's own loading"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in (where, "whole run", "share", "an item"):
        table.add_column(title, justify="left" if title == where else "right", no_wrap=True)
    for name, seconds in run.worker_s.items():
        share = run.share(name)
        if share < _HIDE_BELOW:
            continue
        stage, _, member = name.partition(".")
        label = f"  {member}" if member else stage
        own_items = max(sum(trial.timeline.items), 1)
        table.add_row(Text(label), format_seconds(seconds), f"{share:.1%}", format_seconds(seconds / own_items))
    return table


def _rank_table(trial: Trial) -> RenderableType:
    """What each rank does in a step once steady, and how uneven the ranks are."""
    found = ranks.figures(trial)
    if not found:
        return Text("no step came after the warm-up: --batches gives more to compare the ranks by")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    titles = ("rank, in a step", "waits", "computes", "other", "idle", "exchange", "delays others")
    for title in titles:
        table.add_column(title, justify="left" if title == titles[0] else "right", no_wrap=True)
    for each in found:
        spent = (each.wait_s, each.step_s, each.other_s, each.idle_s, each.exchange_s, each.held_s)
        table.add_row(str(each.rank), *map(format_seconds, spent))
    even = (
        "idle: until slower ranks have come to the exchange. The busiest rank works "
        f"{ranks.imbalance(found):.2f} times as long as the mean. Other tables are of rank {trial.pace_rank}."
    )
    return Group(table, Text(even))


def _facts(trial: Trial) -> list[RenderableType]:
    run = whole(trial)
    busy = steady(trial)
    lines = [
        f"{format_count(run.items, 'item')} in {format_count(run.batches, 'batch', 'batches')}; first batch after "
        f"{format_seconds(trial.start_s + (trial.first_batch_s or 0.0))}; device busy {run.busy:.0%} of the run"
        + (f", {busy.busy:.0%} once steady" if busy else "")
    ]
    if len(trial.timeline.epoch_s) > 1:
        lines.append("epochs: " + ", ".join(format_seconds(seconds) for seconds in trial.timeline.epoch_s))
    if trial.scores:
        lines.append(
            "validation: " + ", ".join("not a number" if value is None else f"{value:.4f}" for value in trial.scores)
        )
    lines += [_gauge_line(trial, name) for name in _GAUGES if name in trial.gauges]
    throttled = trial.gauges.get("throttled_s")
    if throttled and throttled.samples[-1] > throttled.samples[0]:
        lines.append(f"held back by the CPU quota: {format_seconds(throttled.samples[-1] - throttled.samples[0])}")
    if "reserved_bytes" in trial.peaks:
        allocated, reserved = trial.peaks["allocated_bytes"], trial.peaks["reserved_bytes"]
        lines.append(f"torch's peak: {format_bytes(allocated)} allocated, {format_bytes(reserved)} reserved")
    if "limited_bytes" in trial.peaks:
        limit = trial.extent.memory_limit_bytes or 0
        had = format_bytes(trial.peaks["limited_bytes"])
        lines.append(f"memory with page cache: at most {had} of the {format_bytes(limit)} that the run may have")
    if trial.machine and trial.machine.storage:
        lines.append(f"data on {trial.machine.storage.kind} storage ({trial.machine.storage.filesystem})")
    return [Text(line) for line in lines]


def _gauge_line(trial: Trial, name: str) -> str:
    gauge = trial.gauges[name]
    label, kind = _GAUGES[name]
    write = {"share": "{:.0%}".format, "bytes": format_bytes, "number": "{:.1f}".format}[kind]
    return f"{label}: {write(gauge.average)} on average, {write(gauge.maximum)} at most"


def stalls_view(stalls: Stalls) -> RenderableType:
    """The three runs side by side, and the two kinds of stalls. If a run did not finish, why."""
    for trial in (stalls.memory, stalls.cached, stalls.cold):
        if trial.outcome != "done":
            return profile_view(trial, None, ())
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("data", "seconds", "items/s", "the device waits"):
        table.add_column(title, justify="left" if title == "data" else "right")
    rows = {"batches in memory": stalls.memory, "files cached": stalls.cached, "files cold": stalls.cold}
    for label, trial in rows.items():
        span = whole(trial)
        seconds = loop_s(trial)
        table.add_row(label, format_seconds(seconds), f"{span.items / seconds:,.1f}", f"{span.share('wait'):.0%}")
    sentence = (
        f"Of a cold run's time, {preparation_share(stalls):.0%} is preparation stall (decoding, transforming, moving), "
        f"{fetch_share(stalls):.0%} is fetch stall (reading from storage)."
    )
    notes = [Text(f"note: {note}", style="yellow") for note in stalls.cold.notes]
    return Group(_heading(stalls.cold), table, *notes, Text(sentence, style="bold"))
