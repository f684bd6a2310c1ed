"""The page of a plan: what to set, what it gains, the predicted landscape with the settings that ran."""

from collections.abc import Sequence
from functools import partial

from stoker.analysis.series import (
    candidate_rows,
    landscape_rows,
    remedy_rows,
    ruled_out_rows,
    sample_rows,
    setting_text,
)
from stoker.analysis.verdict import verdict
from stoker.records import InterruptedTune, Machine, Plan, Prediction
from stoker.report import charts
from stoker.report.html import Card, Figure, Page, Section, Table
from stoker.report.pages.parts import capital, counted, figure, machine_facts, percent, short_names, times
from stoker.report.pages.trial import trial_page
from stoker.units import format_seconds


def plan_page(plan: Plan, *, landscape: Sequence[Prediction] = (), machine: Machine | None = None) -> Page:
    """What to set and why. `landscape` are predictions of settings that did not run, which a plan does not keep."""
    wanted = plan.objective
    goal = "highest steady rate" if wanted.kind == "throughput" else f"least time for {wanted.items:,} items"
    epochs = f" × {wanted.epochs} epochs" if wanted.epochs > 1 else ""
    sections = [
        Section(
            "Predicted and measured",
            [*_landscape(plan, landscape), *_candidates(plan), *_samples(plan)],
            tables=_table(plan),
        ),
        Section("What would help", _remedies(plan)),
        Section("Ruled out", tables=_ruled_out(plan)),
    ]
    facts = {
        **(machine_facts(machine) if machine else {}),
        "planner": plan.planner,
        "tuned in": f"{format_seconds(plan.seconds)}, probes {format_seconds(plan.probe_s)}",
        "line to paste": plan.line,
    }
    drawn = [section for section in sections if section.figures or section.tables]
    name = short_names([plan.workload])[plan.workload]
    return Page("plan", name, f"{plan.mode} · {goal}{epochs}", _cards(plan), drawn, facts, plan.notes)


def _cards(plan: Plan) -> list[Card]:
    measured = plan.measured
    seconds = (
        f"{format_seconds(measured.total_s)} measured" if measured else f"{format_seconds(plan.predicted_s)} predicted"
    )
    cards = [
        Card(about="best setting", answer=capital(setting_text(plan.batch_size, plan.num_workers)), detail=seconds)
    ]
    if plan.gain is not None and plan.current is not None:
        now = setting_text(plan.current.setting.batch_size, plan.current.setting.num_workers)
        cards.append(
            Card(about="gain", answer=f"{capital(times(plan.gain))} as fast", detail=f"as the current setting, {now}")
        )
    if plan.verdict is not None:
        cards.append(
            Card(
                about="bottleneck that is left",
                answer=capital(plan.verdict.bottleneck),
                detail=capital(plan.verdict.sentence),
            )
        )
    cards.append(Card(about="line to paste", answer=plan.line, code=True))
    return cards


def _landscape(plan: Plan, landscape: Sequence[Prediction]) -> list[Figure]:
    rows = landscape_rows(plan, landscape)
    if len({row["batch_size"] for row in rows}) < 2 and len({row["num_workers"] for row in rows}) < 2:
        return []
    measured = {(row["batch_size"], row["num_workers"]): row for row in candidate_rows(plan)}
    rows = [
        {**row, "measured_s": measured.get((row["batch_size"], row["num_workers"]), {}).get("measured_s")}
        for row in rows
    ]
    known = [row for row in rows if row["seconds"] is not None]
    title = f"{capital(counted(len(known), 'setting'))} predicted, {counted(len(measured), 'setting')} measured"
    out = f"; {counted(len(rows) - len(known), 'setting')} ruled out" if len(rows) > len(known) else ""
    note = f"Numbers: predicted seconds. Ring: the least predicted time. Dot: measured{out}. {charts.sign_text(rows)}"
    return [figure(title, rows, charts.landscape, note=note, alt="Predicted time over batch size and workers")]


def _candidates(plan: Plan) -> list[Figure]:
    rows = candidate_rows(plan)
    if len(rows) < 2:
        return []
    errors = sorted(abs(row["predicted_s"] / row["measured_s"] - 1) for row in rows)
    title = f"Predictions are {percent(errors[len(errors) // 2])} off at the median, {percent(errors[-1])} at worst"

    draw = partial(
        charts.scatter,
        x="measured_s",
        y="predicted_s",
        x_title="measured seconds",
        y_title="predicted seconds",
        label="setting",
        colour="role",
    )

    note = "Lines: intervals of the predictions. Dashed: predicted equals measured."
    return [figure(title, rows, draw, note=note, alt="Predicted over measured seconds", half=True)]


def _samples(plan: Plan) -> list[Figure]:
    rows = sample_rows(plan)
    if len(rows) < 2:
        return []
    best = min(rows, key=lambda row: row["seconds"])
    title = f"The fastest run takes {format_seconds(best['seconds'])}: {best['setting']}"
    draw = partial(charts.strip, label="setting", value="seconds", title="measured seconds, a point a run")
    return [figure(title, rows, draw, alt="Every run of each setting", half=True)]


def _table(plan: Plan) -> list[Table]:
    rows = candidate_rows(plan)
    cells = [
        [
            row["role"],
            row["setting"],
            format_seconds(row["predicted_s"]),
            format_seconds(row["measured_s"]),
            str(row["runs"]),
        ]
        for row in rows
    ]
    return [Table("Settings that ran", ["", "setting", "predicted", "measured", "runs"], cells)] if cells else []


def _remedies(plan: Plan) -> list[Figure]:
    rows = remedy_rows(plan)
    if not rows:
        return []
    names = short_names(row["change"] for row in rows)
    rows = [{**row, "change": names[row["change"]]} for row in rows]
    first = rows[0]
    change = f"{format_seconds(first['before_s'])} → {format_seconds(first['after_s'])}"
    title = f"{capital(first['change'])}: {change}, predicted"
    more = {"before_s": "seconds before", "after_s": "seconds after"}
    draw = partial(
        charts.bars, label="change", value="times_as_fast", title="times as fast, predicted", unit="", more=more
    )
    return [figure(title, rows, draw, alt="Predicted gain of each remedy")]


def _ruled_out(plan: Plan) -> list[Table]:
    rows = ruled_out_rows(plan)
    cells = [[row["bound"], f"{row['settings']:,}", row["example"]] for row in rows]
    return [Table("", ["limit", "settings", "for example"], cells)] if cells else []


def interrupted_page(found: InterruptedTune) -> Page:
    """What a tuning had measured when it ended early."""
    trials = [trial for trial in found.trials if trial.outcome == "done"]
    words = "interrupted" if found.interrupted else "failed"
    made = f"{counted(len(found.runs), 'probe')} and {counted(len(found.trials), 'run')}"
    note = f"This tuning was {words}. It had made {made}."
    if not trials:
        return Page("tune", "Unfinished tuning", "", (), (), {}, [note])
    best = max(trials, key=lambda trial: trial.items_per_s or 0.0)
    page = trial_page(best, verdict(best))
    rows = [
        [
            setting_text(each.setting.batch_size, each.setting.num_workers),
            f"{each.items_per_s or 0:,.1f}",
            each.outcome.replace("_", " "),
        ]
        for each in found.trials
    ]
    table = Section("Runs", tables=[Table("", ["setting", "items/s", "outcome"], rows)])
    return page._replace(kind="tune", sections=[table, *page.sections], notes=[note, *page.notes])
