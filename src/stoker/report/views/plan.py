"""The table of `stoker tune`: what to set, how much faster it is, why, and what was ruled out."""

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stoker.records import Bound, Candidate, Plan, Remedy
from stoker.units import format_seconds, format_workers

_SHOWN_REMEDIES = 4
_BOUND_NAMES: dict[Bound, str] = {
    "device_memory": "device memory",
    "shm": "/dev/shm",
    "host_memory": "host memory",
    "open_files": "file descriptors",
    "cpus": "CPUs",
}


def plan_view(plan: Plan) -> RenderableType:
    parts: list[RenderableType] = [
        _heading(plan),
        Text(),
        Text(f"  {plan.line}", style="bold green", overflow="ignore", no_wrap=True),
    ]
    parts += [Text(), Text(_summary(plan)), _table(plan)]
    if plan.verdict is not None:
        judged = plan.verdict
        parts += [Text.assemble(("Bottleneck: ", "bold"), (judged.bottleneck, "bold red"), f" — {judged.sentence}.")]
    parts += remedy_lines(plan.remedies)
    parts += _ruled_out(plan)
    parts += [Text(f"note: {note}", style="yellow") for note in plan.notes]
    parts.append(Text(f"Tuned in {format_seconds(plan.seconds)}.", style="dim"))
    return Group(*parts)


def remedy_lines(remedies: Sequence[Remedy]) -> list[RenderableType]:
    """The remedies, the best first."""
    if not remedies:
        return []
    lines: list[RenderableType] = [Text("What would help, as predicted:", style="bold")]
    lines += [Text(f"  {remedy.sentence}") for remedy in remedies[:_SHOWN_REMEDIES]]
    return lines


def _heading(plan: Plan) -> Text:
    wanted = plan.objective
    what = f"{wanted.items:,} items" + (f" × {wanted.epochs} epochs" if wanted.epochs > 1 else "")
    goal = "highest steady rate" if wanted.kind == "throughput" else f"least time for {what}"
    return Text.assemble((plan.workload, "bold"), f" · {plan.mode} · {goal}")


def _summary(plan: Plan) -> str:
    text = f"batch {plan.batch_size}, {format_workers(plan.num_workers)}"
    if plan.accumulate > 1 or plan.gpus > 1:
        whole = plan.batch_size * plan.accumulate * plan.gpus
        text += f" ({plan.batch_size} × {plan.accumulate} steps × {plan.gpus} GPUs = {whole})"
    if plan.measured is not None:
        text += f": {format_seconds(plan.measured.total_s)} measured"
        if plan.objective.kind == "throughput":
            text += f" ({plan.measured.steady_items_per_s:,.1f} items/s)"
    if plan.predicted is not None:
        text += f", {format_seconds(plan.predicted_s)} predicted"
    if plan.gain is not None:
        text += f"; {plan.gain:.2f} times as fast as the current setting"
    return text + "."


def _table(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    differ = len({each.setting.prefetch_factor for each in plan.candidates if each.setting.num_workers}) > 1
    ahead = ("ahead",) if differ else ()
    for title in ("", "batch", "workers", *ahead, "predicted", "measured", "runs", "first batch"):
        table.add_column(title, justify="left" if not title else "right", no_wrap=True)
    for each in plan.candidates[:12]:
        table.add_row(*_cells(plan, each, ahead=differ))
    return table


def _cells(plan: Plan, each: Candidate, *, ahead: bool) -> tuple[str, ...]:
    setting, seen = each.setting, each.measured
    chosen = (setting.batch_size, setting.num_workers, setting.prefetch_factor) == (
        plan.batch_size,
        plan.num_workers,
        plan.prefetch_factor,
    )
    marks = (("plan", chosen), ("current", each == plan.current), ("tied", each.tied))
    label = " ".join(word for word, on in marks if on)
    return (
        label,
        str(setting.batch_size),
        str(setting.num_workers),
        *((str(setting.prefetch_factor) if setting.num_workers else "–",) if ahead else ()),
        format_seconds(each.predicted_s),
        format_seconds(seen.total_s) if seen else "did not finish",
        str(len(seen.samples_s)) if seen else "–",
        format_seconds(seen.first_batch_s) if seen else "–",
    )


def _ruled_out(plan: Plan) -> list[RenderableType]:
    if not plan.ruled_out:
        return []
    counts = Counter(each.bound for each in plan.ruled_out)
    first = {each.bound: each for each in reversed(plan.ruled_out)}
    lines: list[RenderableType] = [Text("Ruled out:", style="bold")]
    for bound, count in counts.items():
        each = first[bound]
        setting = f"batch {each.batch_size}, {format_workers(each.num_workers)}"
        lines.append(
            Text(f"  {_BOUND_NAMES[bound]}: {count} setting{'s' if count > 1 else ''}; {setting}: {each.sentence}")
        )
    return lines
