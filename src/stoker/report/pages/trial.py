"""The page of one measured run, and of the three runs that tell stalls apart."""

from collections.abc import Sequence
from functools import partial

from stoker.analysis import ranks
from stoker.analysis.interference import disturbance_note
from stoker.analysis.series import (
    epoch_rows,
    gauge_rows,
    item_rows,
    rank_rows,
    stage_rows,
    timeline_rows,
    transform_rows,
    wait_rows,
)
from stoker.analysis.spans import steady, whole
from stoker.analysis.stalls import fetch_share, loop_s, preparation_share
from stoker.records import Remedy, Stalls, Trial, Verdict
from stoker.report import charts
from stoker.report.console import batch_text, mode_text
from stoker.report.html import Card, Figure, Page, Section, Table
from stoker.report.pages.parts import capital, figure, percent, short_names, times, trial_facts
from stoker.units import format_bytes, format_seconds, format_workers


def trial_page(trial: Trial, verdict: Verdict | None = None, remedies: Sequence[Remedy] = ()) -> Page:
    """Where the time of one run went. A run that did not finish has a page that says why."""
    subject = trial.workload
    title = short_names([subject.name])[subject.name]
    subtitle = (
        f"{subject.data} · {mode_text(subject.mode, subject.mode_reason)} on {subject.device} · {_setting_text(trial)}"
    )
    sections = [section for section in _sections(trial) if section.figures or section.tables]
    notes = list(trial.notes)
    disturbed = disturbance_note(trial)
    if disturbed:
        notes.append(capital(disturbed))
    return Page("profile", title, subtitle, _cards(trial, verdict, remedies), sections, trial_facts(trial), notes)


def _setting_text(trial: Trial) -> str:
    return f"{batch_text(trial)}, {format_workers(trial.setting.num_workers)}"


def _cards(trial: Trial, verdict: Verdict | None, remedies: Sequence[Remedy]) -> list[Card]:
    if trial.outcome != "done":
        problem = trial.problem
        detail = " ".join(each for each in (problem.sentence, problem.remedy) if each) if problem else ""
        return [Card(about="outcome", answer=capital(trial.outcome.replace("_", " ")), detail=detail)]
    cards = []
    if verdict is not None:
        cards.append(Card(about="bottleneck", answer=capital(verdict.bottleneck), detail=capital(verdict.sentence)))
    helping = [each for each in remedies if each.kind != "what_if"]
    if helping:
        best = min(helping, key=lambda each: each.after_s)
        more = f"{format_seconds(best.before_s)} → {format_seconds(best.after_s)}, predicted"
        cards.append(Card(about="what would help most", answer=capital(best.change), detail=more))
    rate = trial.items_per_s
    if rate:
        calm = steady(trial)
        after = f"; {calm.items_per_s:,.1f} once steady" if calm else ""
        detail = f"{trial.items:,} items in {format_seconds(trial.total_s)}{after}"
        cards.append(Card(about="rate", answer=f"{rate:,.1f} items/s", detail=detail))
    return cards


def _sections(trial: Trial) -> list[Section]:
    timeline = Section("Batch by batch", [*_waits(trial), *timeline_figure(trial)])
    where = Section("Where the time went", _stage_figures(trial))
    gauges = Section("Processors and memory", gauge_figure(trial))
    return [where, _ranks(trial), timeline, gauges, _more(trial)]


def _ranks(trial: Trial) -> Section:
    """The stages of every rank side by side, and what they wait for."""
    found = ranks.figures(trial)
    if not found:
        return Section("Ranks")
    pace = ranks.sets_pace(found)
    even = f"The {len(found)} ranks are even: the busiest works {ranks.imbalance(found):.2f} times as long as the mean"
    title = even
    if pace is not None:
        waited, period = format_seconds(pace.held_s), format_seconds(pace.period_s)
        title = f"The others wait {waited} of each {period} for rank {pace.rank}"
    rows = rank_rows(trial)
    draw = partial(charts.stage_bars, x="rank", x_title="rank")
    note = "A step once steady. Idle: until slower ranks have come to the exchange of gradients."
    heads = ["rank", "waits", "computes", "other", "idle", "exchange", "delays others", "items"]
    items = {log.rank: log.items for log in trial.rank_logs}
    cells = [
        [
            str(each.rank),
            *map(
                format_seconds,
                (each.wait_s, each.step_s, each.other_s, each.idle_s, each.exchange_s, each.held_s),
            ),
            f"{items[each.rank]:,}",
        ]
        for each in found
    ]
    drawn = figure(title, rows, draw, note=note, alt="Stages of each rank in a step")
    return Section("Ranks", [drawn], tables=[Table("A step of each rank", heads, cells)])


def _stage_figures(trial: Trial) -> list[Figure]:
    figures = []
    stages = stage_rows(trial)
    for clock, what in (("loop", "the run"), ("worker", "the workers' time")):
        rows = [row for row in stages if row["clock"] == clock]
        if not rows:
            continue
        rows.sort(key=lambda row: -row["seconds"])
        title = f"{capital(rows[0]['stage'])} takes {percent(rows[0]['share'])} of {what}"

        draw = partial(charts.bars, label="stage", value="seconds", title="time", more={"share": "share"})

        alt = f"Seconds of each stage of {what}"
        figures.append(figure(title, rows, draw, alt=alt, half=True))
    parts = transform_rows(trial)
    if parts:
        names = short_names(row["transform"] for row in parts)
        parts = [{**row, "transform": names[row["transform"]]} for row in parts]
        title = f"{parts[0]['transform']} takes {percent(parts[0]['share'])} of the workers' time"
        draw = partial(charts.bars, label="transform", value="seconds", title="time", more={"share": "share"})
        figures.append(figure(title, parts, draw, note="By transform.", alt="Seconds of each transform", half=True))
    return figures


def _waits(trial: Trial) -> list[Figure]:
    rows = wait_rows(trial)
    if len(rows) < 2:
        return []
    waits = sorted(row["wait_s"] for row in rows)
    first, middle = rows[0]["wait_s"], waits[len(waits) // 2]
    title = f"The first batch takes {format_seconds(first)}; the median wait is {format_seconds(middle)}"
    draw = partial(charts.bars_in_order, x="batch", y="wait_s", x_title="batch", y_title="wait")
    return [figure(title, rows, draw, note="The wait of each batch, in order.", alt="Wait of each batch in order")]


def timeline_figure(trial: Trial) -> list[Figure]:
    """The timeline of a run: its workers' batches above, the loop's waits and steps below."""
    rows = timeline_rows(trial)
    if not rows:
        return []
    span = whole(trial)
    title = f"The loop waits {percent(span.share('wait'))} of the run with {_setting_text(trial)}"
    shown = len({row["batch"] for row in rows})
    of = len(trial.timeline.got_s)
    cut = f"The first {shown:,} of {of:,} batches. " if shown < of else ""
    note = f"{cut}Workers above, the loop below. Scroll to zoom, drag to move."
    return [figure(title, rows, charts.timeline, note=note, alt="Timeline of workers and loop")]


def gauge_figure(trial: Trial) -> list[Figure]:
    """Processors, memory and `/dev/shm` over the time of a run."""
    rows = gauge_rows(trial)
    if len({row["time_s"] for row in rows}) < 2:
        return []
    gauge = trial.gauges
    memory = max((gauge[name].maximum for name in ("rss_bytes", "pss_bytes") if name in gauge), default=0.0)
    parts = [f"{gauge['cpu_cores'].average:.1f} CPU cores on average"] if "cpu_cores" in gauge else []
    parts += [f"{format_bytes(memory)} of memory at most"] if memory else []
    if "gpu_utilisation" in gauge:
        parts.insert(0, f"the GPU is {percent(gauge['gpu_utilisation'].average)} busy")
    title = capital(", ".join(parts)) or "Readings during the run"
    return [figure(title, rows, charts.readings, alt="Gauges over time")]


def _more(trial: Trial) -> Section:
    figures = []
    epochs = epoch_rows(trial)
    if epochs:
        ratio = epochs[0]["seconds"] / min(row["seconds"] for row in epochs)
        title = f"The first epoch takes {times(ratio)} as long as the fastest"
        draw = partial(charts.bars_in_order, x="epoch", y="seconds", x_title="epoch", y_title="seconds")
        figures.append(figure(title, epochs, draw, alt="Seconds of each epoch", half=True))
    items = item_rows(trial)
    if items:
        middle = items[len(items) // 2]["item_s"]
        slowest = format_seconds(items[-1]["item_s"])
        title = f"Half of the items load in {format_seconds(middle)} or less, the slowest in {slowest}"
        draw = partial(charts.quantiles, y="item_s", y_title="time an item")
        figures.append(figure(title, items, draw, alt="Loading time of items by quantile", half=True))
    return Section("Items and epochs", figures)


def stalls_page(stalls: Stalls) -> Page:
    """The three runs of `--stalls` side by side."""
    trials = {"memory": stalls.memory, "cached": stalls.cached, "cold": stalls.cold}
    base = trial_page(stalls.cold)
    cards = []
    if stalls.finished:
        cards = [
            Card(
                about="preparing data",
                answer=percent(preparation_share(stalls)),
                detail="of the cold run: decoding, transforming, the rest of loading",
            ),
            Card(
                about="reading data",
                answer=percent(fetch_share(stalls)),
                detail="of the cold run: from storage, beyond what the page cache costs",
            ),
        ]
    rows = [
        {"source": name, **row}
        for name, trial in trials.items()
        for row in stage_rows(trial)
        if row["clock"] == "loop" and row["stage"] not in ("start", "stop")
    ]
    sections = []
    if rows:
        seconds = {name: loop_s(trial) for name, trial in trials.items() if trial.outcome == "done"}
        title = "The loop takes " + ", ".join(
            f"{format_seconds(value)} {_SOURCES[name]}" for name, value in seconds.items()
        )
        draw = partial(charts.stage_bars, x="source", x_title="where the data lies")
        sections.append(
            Section("The same setting, three places", [figure(title, rows, draw, alt="Stages of the three runs")])
        )
    problems = [
        [name, trial.outcome.replace("_", " "), trial.problem.sentence]
        for name, trial in trials.items()
        if trial.problem is not None
    ]
    if problems:
        sections.append(Section("What failed", tables=[Table("", ["run", "outcome", "problem"], problems)]))
    inner = [section._replace(title=f"Cold: {section.title}") for section in base.sections]
    return base._replace(kind="stalls", cards=cards or base.cards, sections=[*sections, *inner])


_SOURCES = {"memory": "from memory", "cached": "from the page cache", "cold": "from storage"}
