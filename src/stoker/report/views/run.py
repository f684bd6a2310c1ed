"""What `stoker run` prints when the script has ended."""

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from stoker.analysis.spans import steady, wait_s, whole
from stoker.analysis.verdict import verdict
from stoker.records import Proposal, ScriptAnswer, Trial
from stoker.report.views.plan import remedy_lines
from stoker.report.views.profile import profile_view
from stoker.units import format_count, format_seconds


def script_view(answer: ScriptAnswer) -> RenderableType:
    """Where the time went, which argument to change and where, and what was measured of it."""
    parts: list[RenderableType] = []
    trial = answer.training
    if trial is not None:
        parts += [_site(trial), profile_view(trial, verdict(trial), ())]
        parts += [*_ranks(trial, answer.ranks), *_others(answer.others)]
        parts += _proposals(answer)
        if answer.headroom is not None:
            parts.append(Text.assemble(("Headroom: ", "bold"), f"{answer.headroom.sentence}."))
            parts.append(Text("  It was replayed with batches that had been loaded: that run trained nothing.", "dim"))
        parts += remedy_lines(answer.remedies)
    if answer.status:
        parts.append(Text(f"note: the script ended with status {answer.status}", style="yellow"))
    parts += [Text(f"note: {note}", style="yellow") for note in answer.notes]
    parts += [Text(f"not observed: {problem}", style="yellow") for problem in answer.problems]
    return Group(*parts)


def _site(trial: Trial) -> Text:
    options = trial.task.options if trial.task is not None else {}
    batches = format_count(len(trial.timeline.got_s), "batch", "batches")
    place = f" of the loader made at {_place(trial)}" if "file" in options else ""
    return Text.assemble(("stoker run", "bold"), f" · {batches}{place}", overflow="ignore", no_wrap=True)


def _place(trial: Trial) -> str:
    """The file and line where the loader was made, from the current folder on."""
    options = trial.task.options if trial.task is not None else {}
    if "file" not in options:
        return trial.workload.data
    file = Path(str(options["file"]))
    with contextlib.suppress(ValueError):
        file = file.relative_to(Path.cwd())
    return f"{file}:{options['line']}"


def _proposals(answer: ScriptAnswer) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if answer.training is not None and steady(answer.training) is None:
        return [Text("Too few batches were read to tell a pace from them.")]
    if not answer.proposals:
        return [Text("No other workers or prefetching are predicted to make a batch faster.")]
    lines.append(Text("What to change, with the time of a batch as predicted:", style="bold"))
    best, *others = answer.proposals
    lines += _proposal(best)
    for each in others:
        if each.gain > best.gain or each.verified is not None:
            lines += _proposal(each)
    return lines


def _proposal(proposal: Proposal) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(f"  {proposal.remedy.sentence} ({proposal.gain:.2f} times as fast)")]
    what = [edit.sentence for edit in proposal.edits]
    what += [f"add to the command: {shlex.join(proposal.arguments)}"] if proposal.arguments else []
    what += [proposal.how] if proposal.how else []
    lines += [Text(f"    {each}", style="bold green", overflow="ignore", no_wrap=True) for each in what]
    found = proposal.verified
    if found is not None and found.measured_gain is not None:
        pairs = format_count(len(found.before_s), "pair of runs", "pairs of runs")
        lines.append(Text(f"    measured: {found.measured_gain:.2f} times as fast ({pairs})", style="bold"))
    elif found is not None:
        lines.append(Text(f"    could not be measured: {found.problem}"))
    return lines


def _others(trials: Sequence[Trial]) -> list[RenderableType]:
    """One line for each loader that does not train."""
    lines: list[RenderableType] = []
    for trial in trials:
        run = whole(trial)
        batches = format_count(run.batches, "batch", "batches")
        lines.append(
            Text(
                f"also read: {_place(trial)}, {trial.workload.data}, {batches} in {format_seconds(run.seconds)}, "
                f"of which {run.share('wait'):.0%} waiting"
            )
        )
    return lines


def _ranks(first: Trial, ranks: Sequence[Trial]) -> list[RenderableType]:
    """Which rank waits longest for its data."""
    if not ranks:
        return []
    waits = {_rank(trial): wait_s(trial) for trial in (first, *ranks)}
    slowest = max(waits, key=lambda rank: waits[rank])
    least = min(waits.values())
    return [
        Text(
            f"{len(waits)} ranks, of which this is rank {_rank(first)}; rank {slowest} waits longest for data: "
            f"{format_seconds(waits[slowest])} a batch, the least is {format_seconds(least)}"
        )
    ]


def _rank(trial: Trial) -> int:
    return int(trial.task.options.get("rank", 0)) if trial.task is not None else 0
