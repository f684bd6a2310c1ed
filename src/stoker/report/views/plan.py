"""The table of `stoker tune`: what to set, how much faster it is, why, and what was ruled out."""

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stoker.records import Bound, Candidate, Plan, Remedy, Setting, Verdict, VerifiedRemedy
from stoker.report.console import mode_text
from stoker.units import format_seconds, format_workers

_SHOWN_REMEDIES = 4
_SHOWN_WHAT_IFS = 3
_BOUND_NAMES: dict[Bound, str] = {
    "device_memory": "device memory",
    "shm": "/dev/shm",
    "host_memory": "host memory",
    "open_files": "file descriptors",
    "cpus": "CPUs",
    "shards": "shards of the stream",
}


def plan_view(plan: Plan) -> RenderableType:
    parts: list[RenderableType] = [
        _heading(plan),
        Text(),
        Text(f"  {plan.line}", style="bold green", overflow="ignore", no_wrap=True),
    ]
    parts += [Text(), Text(_summary(plan)), _table(plan)]
    if plan.verdict is not None:
        parts += verdict_lines(plan.verdict)
    parts += remedy_lines(plan.remedies, plan.verdict)
    parts += verified_lines(plan.verified)
    parts += _ruled_out(plan)
    parts += [Text(f"note: {note}", style="yellow") for note in plan.notes]
    parts.append(Text(f"Tuned in {format_seconds(plan.seconds)}.", style="dim"))
    return Group(*parts)


def verdict_lines(judged: Verdict) -> list[RenderableType]:
    """The bottleneck; before it why the verdict is uncertain, after it what else was found."""
    lines: list[RenderableType] = []
    if judged.uncertain:
        lines.append(Text.assemble(("Uncertain: ", "bold yellow"), f"{judged.doubt}."))
    name = f"{judged.bottleneck} (uncertain)" if judged.uncertain else judged.bottleneck
    lines.append(Text.assemble(("Bottleneck: ", "bold"), (name, "bold red"), f" — {judged.sentence}."))
    lines += [Text(f"  {finding}") for finding in judged.findings]
    return lines


def remedy_lines(remedies: Sequence[Remedy], judged: Verdict | None = None) -> list[RenderableType]:
    """The remedies, the best first; what-ifs apart from what can be done. They are as uncertain as the verdict."""
    how = "as predicted, which is uncertain, too" if judged is not None and judged.uncertain else "as predicted"
    lines: list[RenderableType] = []
    done = [remedy for remedy in remedies if remedy.kind != "what_if"][:_SHOWN_REMEDIES]
    if done:
        lines.append(Text(f"What would help, {how}:", style="bold"))
        lines += [Text(f"  {remedy.sentence}") for remedy in done]
    supposed = [remedy for remedy in remedies if remedy.kind == "what_if"][:_SHOWN_WHAT_IFS]
    if supposed:
        lines.append(Text(f"What if, {how}:", style="bold"))
        lines += [Text(f"  {remedy.sentence}") for remedy in supposed]
    return lines


def verified_lines(verified: Sequence[VerifiedRemedy]) -> list[RenderableType]:
    """Predicted and measured gain of each remedy that was run."""
    lines: list[RenderableType] = [Text("Verified by runs:", style="bold")] if verified else []
    for each in verified:
        gain = each.measured_gain
        if gain is None or each.problem is not None:
            lines.append(Text(f"  {each.remedy.change}: could not be run: {each.problem}"))
            continue
        pairs = f"{len(each.before_s)} pair{'s' if len(each.before_s) > 1 else ''} of runs"
        predicted = f"{each.predicted_gain:.2f} times as fast predicted"
        lines.append(Text(f"  {each.remedy.change}: {predicted}, {gain:.2f} measured ({pairs})"))
    return lines


def _heading(plan: Plan) -> Text:
    wanted = plan.objective
    what = f"{wanted.items:,} items" + (f" × {wanted.epochs} epochs" if wanted.epochs > 1 else "")
    goal = "highest steady rate" if wanted.kind == "throughput" else f"least time for {what}"
    return Text.assemble((plan.workload, "bold"), f" · {mode_text(plan.mode, plan.mode_reason)} · {goal}")


def _summary(plan: Plan) -> str:
    text = f"batch {plan.batch_size}, {format_workers(plan.num_workers)}"
    text += " per rank" if plan.ranks > 1 else ""
    if plan.accumulate > 1 or plan.gpus > 1 or plan.ranks > 1:
        replicas = f"{plan.ranks} ranks" if plan.ranks > 1 else f"{plan.gpus} GPUs"
        whole = plan.batch_size * plan.accumulate * max(plan.ranks, plan.gpus)
        text += f" ({plan.batch_size} × {plan.accumulate} steps × {replicas} = {whole})"
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
    differ = len({each.setting.prefetch_factor for each in plan.candidates if each.setting.num_workers}) > 1
    ahead = ("ahead",) if differ else ()
    kinds = ("started by",) if len({_kind(each.setting) for each in plan.candidates} - {"–"}) > 1 else ()
    updates = ("updates",) if len({each.updates for each in plan.candidates}) > 1 else ()
    extra = len((*updates, *ahead, *kinds))  # 80 columns have room for all only if they stand close
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=((0, 1), (0, 1, 0, 0), 0, 0)[extra])
    first = "first\nbatch" if extra else "first batch"
    for title in ("", "batch", *updates, "workers", *ahead, *kinds, "predicted", "measured", "runs", first):
        wraps = title == "started by"
        table.add_column(
            title, justify="right" if title else "left", no_wrap=not wraps, min_width=11 if wraps else None
        )
    for each in plan.candidates[:12]:
        table.add_row(*_cells(plan, each, ahead=differ, kinds=bool(kinds), updates=bool(updates)))
    return table


def _kind(setting: Setting) -> str:
    """How workers are started, and their threads."""
    if not setting.num_workers:
        return "–"
    threads = "" if setting.worker_threads is None else f", {setting.worker_threads} threads"
    return f"{setting.multiprocessing_context or 'default'}{threads}"


def _is_planned(plan: Plan, setting: Setting) -> bool:
    names = ("batch_size", "num_workers", "prefetch_factor", "multiprocessing_context", "worker_threads")
    return all(getattr(plan, name) == getattr(setting, name) for name in names)


def _cells(plan: Plan, each: Candidate, *, ahead: bool, kinds: bool, updates: bool) -> tuple[str, ...]:
    setting, seen = each.setting, each.measured
    is_current = plan.current is not None and setting == plan.current.setting
    marks = (("plan", _is_planned(plan, setting)), ("current", is_current), ("tied", each.tied))
    label = " ".join(word for word, on in marks if on)
    return (
        label,
        str(setting.batch_size),
        *((f"{each.updates:,}" if each.updates is not None else "–",) if updates else ()),
        str(setting.num_workers),
        *((str(setting.prefetch_factor) if setting.num_workers else "–",) if ahead else ()),
        *((_kind(setting),) if kinds else ()),
        format_seconds(each.predicted_s),
        format_seconds(seen.total_s) if seen else "unfinished",
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
