"""The page of a study: which setting to use, what batch size and workers do, where the time goes, what failed."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.analysis import thesis
from stoker.analysis.frames import of_one_kind
from stoker.analysis.overview import Overview, compared_rows
from stoker.analysis.series import Rows, setting_text, wait_rows
from stoker.records import Record, Trial
from stoker.report import charts
from stoker.report.html import Card, Figure, Page, Section, Table
from stoker.report.pages.bottlenecks import bottleneck_cards, bottleneck_sections
from stoker.report.pages.parts import RULES, capital, counted, figure, fold, percent, short_names, times
from stoker.report.pages.trial import gauge_figure, timeline_figure
from stoker.units import format_seconds

if TYPE_CHECKING:
    import polars as pl


class Against(Record, frozen=True):
    """The study that another one is compared with. `about` says how the machines and data differ."""

    name: str
    frame: Any
    about: str = ""


class StudyAbout(Record, frozen=True):
    """What a page says about a study beside its trials. `machines` are labels by fingerprint, `done` of `of` tasks have
    an outcome where it still runs."""

    name: str
    title: str = ""
    kind: str = "profile"
    about: Mapping[str, str] = {}
    machines: Mapping[str, str] = {}
    source: str = ""
    done: int | None = None
    of: int | None = None
    left_s: float | None = None


def study_page(
    frame: "pl.DataFrame",
    about: StudyAbout,
    *,
    against: Sequence[Against] = (),
    samples: Sequence[Trial] = (),
    reload_s: int | None = None,
) -> Page:
    """The page of a study's trials. `samples` are trials with their raw samples, whose waits and timeline are drawn.
    A study of the thesis' presets is shown beside the figures of the thesis.

    A study without any finished trial has a page that says so.
    """
    running = _running(about, reload_s)
    if not frame.height or not {"workload", "model"} & set(frame.columns):
        notes = [*running, "No trial has finished yet."]
        return Page("study", about.name, about.title, (), (), _facts(about, None), notes, reload_s)
    if about.kind == "converge":
        return _convergence_page(frame, about, running, reload_s)
    thesis_section = _thesis(frame, about.name)
    frame = of_one_kind(frame)
    found = Overview(_short(frame), machines=about.machines)
    if about.kind == "search":
        sections = [*bottleneck_sections(found, against), _failures(found)]
        cards, notes = bottleneck_cards(found), running
        drawn = [section for section in sections if section.figures or section.tables]
        return Page("study", about.name, _subtitle(found, about), cards, drawn, _facts(about, found), notes, reload_s)
    sections = [
        _limits(found, about),
        _which(found),
        _axes(found),
        _stages(found),
        _per_item(found),
        _gauges(found),
        _predictions(found),
        *(_against(frame, each) for each in against),
        thesis_section,
        _samples(samples),
        _failures(found),
    ]
    notes = [*running, *_notes(found)]
    cards = _cards(found, about)
    drawn = [section for section in sections if section.figures or section.tables]
    return Page("study", about.name, _subtitle(found, about), cards, drawn, _facts(about, found), notes, reload_s)


def _thesis(frame: "pl.DataFrame", name: str) -> Section:
    """The thesis' figures beside ours, for its presets."""
    title = "Beside the thesis"
    if thesis.preset_of(name) is None:
        return Section(title)
    beside = thesis.beside(name, frame)
    rows = [[row["figure"], row["what"], row["thesis"] or "–", row["here"] or "–"] for row in beside.rows]
    notes = Table("What differs", ["note"], [[note] for note in beside.notes])
    return Section(title, tables=[Table("", ["figure", "what", "the thesis", "here"], rows), notes])


def _convergence_page(frame: "pl.DataFrame", about: StudyAbout, running: Sequence[str], reload_s: int | None) -> Page:
    """The page of a study that compares batch sizes by what they learn."""
    cards, table = [], []
    for row in frame.to_dicts():
        pair = f"{row['against']} against {row['batch_size']}"
        rate = f", learning rate {row['scale_lr']}" if row.get("scale_lr", "none") not in (None, "none") else ""
        name = short_names([row["workload"]])[row["workload"]]
        answer = row.get("finding") or row["outcome"].replace("_", " ")
        cards.append(Card(about=f"{name}, {pair}{rate}", answer=f"{capital(answer)}."))
        for prefix, size in (("", row["batch_size"]), ("against_", row["against"])):
            metrics = [_plain(row.get(f"{prefix}{each}")) for each in ("metric_before", "metric", "validation_loss")]
            seconds = row.get(f"{prefix}train_s")
            took = "–" if seconds is None else format_seconds(seconds)
            table.append([name, f"{size:,}", row.get("scale_lr") or "none", *metrics, took])
    columns = ["workload", "batch", "learning rate", "metric before", "metric", "validation loss", "training"]
    sections = [Section("What was learned", tables=[Table("", columns, table)], text="Means over the seeds.")]
    section = _thesis(frame, about.name)
    drawn = [*sections, *([section] if section.tables else [])]
    return Page("study", about.name, about.title, cards, drawn, _facts(about, None), running, reload_s)


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _short(frame: "pl.DataFrame") -> "pl.DataFrame":
    """With names that fit a chart."""
    import polars as pl

    for name in ("workload", "model", "data", "device", "family"):
        if name in frame.columns and frame.schema[name] == pl.String:
            values = frame[name].drop_nulls().unique(maintain_order=True).to_list()
            frame = frame.with_columns(pl.col(name).replace(short_names(values)))
    return frame


def _running(about: StudyAbout, reload_s: int | None) -> list[str]:
    if about.done is None or about.of is None or not reload_s:
        return []
    left = f", about {format_seconds(about.left_s)} left" if about.left_s else ""
    return [
        f"The study is running: {about.done:,} of {about.of:,} runs have an outcome{left}. The page reloads itself."
    ]


def _subtitle(found: Overview, about: StudyAbout) -> str:
    counts = found.outcomes()
    parts = [
        counted(sum(count for name, count in counts.items() if name != "missing"), "run"),
        counted(len(found.workloads), "workload"),
        *([f"{counted(len(found.parts), 'part')} by {found.part_title}"] if len(found.parts) > 1 else []),
    ]
    for name, noun in (("batch_size", "batch size"), ("num_workers", "worker count")):
        if name in found.cells.columns and found.cells[name].n_unique() > 1:
            parts.append(counted(found.cells[name].n_unique(), noun))
    return " · ".join([*([about.title] if about.title else []), ", ".join(parts)])


def _facts(about: StudyAbout, found: Overview | None) -> dict[str, str]:
    facts = {"kind of study": about.kind, **dict(about.about), "source": about.source}
    if found is None:
        return facts
    frame = found.frame
    names = {found.machine(each) for each in frame["machine"].unique().to_list()}
    facts["machine" if len(names) == 1 else "machines"] = "; ".join(sorted(names))
    versions = [
        f"{name} {', '.join(sorted(str(each) for each in frame[name].drop_nulls().unique().to_list()))}"
        for name in ("stoker", "torch")
        if name in frame.columns and frame[name].count()
    ]
    facts["versions"] = "; ".join(versions)
    if "began" in frame.columns and frame["began"].count():
        began = frame["began"].drop_nulls().cast(str)
        first, last = str(began.min())[:16].replace("T", " "), str(began.max())[:16].replace("T", " ")
        facts["date"] = first if first == last else f"{first} to {last}"
    facts["outcomes"] = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in found.outcomes().items())
    spread = frame["repeat"].n_unique() if "repeat" in frame.columns else 1
    facts["repeats"] = "one run a cell" if spread == 1 else f"up to {spread} runs a cell, their median counts"
    return facts


def _notes(found: Overview) -> list[str]:
    notes = []
    if len(found.workloads) > RULES.panels:
        notes.append(
            f"The study has {len(found.workloads):,} workloads. Charts with a panel each show the {RULES.panels} whose "
            "settings differ most; averages are over all."
        )
    if len(found.parts) > RULES.parts and len(found.workloads) > 1:
        notes.append(
            f"The study has {len(found.parts):,} parts. The first {RULES.parts} have charts of their own; "
            "tables and effects cover all."
        )
    return notes


# ---------------------------------------------------------------- the answer


def _cards(found: Overview, about: StudyAbout) -> list[Card]:
    if about.kind == "limit":
        return _limit_cards(found)
    cards: list[Card] = []
    if not found.done:
        return _item_cards(found)
    if len(found.workloads) == 1:
        for row in found.best_rows()[: RULES.parts]:
            slowest = max((each["regret"] or 0.0 for each in found.heat_rows(row["part"])), default=0.0)
            about_it = row["part"] or row["workload"]
            detail = f"{format_seconds(row['seconds'])}{_an_item(found)}"
            if slowest > 0:
                detail += f"; the slowest setting takes {times(slowest + 1)} as long"
            cards.append(Card(about=about_it, answer=capital(row["setting"]), detail=detail))
        return cards
    for row in found.one_rows()[: RULES.parts]:
        detail = (
            f"{percent(row['regret_mean'])} slower than each workload's own best on average, "
            f"{percent(row['regret_worst'])} at worst ({row['worst_model']})"
        )
        if row["missing"]:
            detail += f"; {counted(row['missing'], 'workload')} did not finish with it"
        others = [each["regret_mean"] for each in found.regret_rows(row["part"]) if each["regret_mean"] is not None]
        if len(others) > 1 and max(others) > row["regret_mean"]:
            detail += f". The worst setting costs {percent(max(others))}"
        label = f"one setting for all: {row['part']}" if row["part"] else "one setting for all"
        cards.append(Card(about=label, answer=capital(row["setting"]), detail=detail))
    return cards


def _item_cards(found: Overview) -> list[Card]:
    """Of trials that have no time of a whole run: the least time an item of each part."""
    least: dict[str, Any] = {}
    for row in sorted(found.item_rows(), key=lambda row: row["item_s"]):
        least.setdefault(row["part"], row)
    return [
        Card(about=part or "least time an item", answer=f"{format_seconds(row['item_s'])} an item", detail=detail)
        for part, row in list(least.items())[: RULES.parts]
        for detail in [f"{row['workload']} with batch {row['batch_size']:,}"]
    ]


def _an_item(found: Overview) -> str:
    """What seconds of cells are of, where that is not a run."""
    return " an item" if found.by_item else ""


def _limit_cards(found: Overview) -> list[Card]:
    rows = found.limit_rows()
    if not rows:
        return []
    least = min(rows, key=lambda row: (row["largest"], row["workload"]))
    most = max(rows, key=lambda row: (row["largest"], row["workload"]))
    where = [f" ({row['part']})" if row["part"] else "" for row in (least, most)]
    return [
        Card(
            about="fits for every workload",
            answer=f"Batch {least['largest']:,}",
            detail=f"{least['workload']}{where[0]} sets it",
        ),
        Card(about="the largest of all", answer=f"Batch {most['largest']:,}", detail=f"{most['workload']}{where[1]}"),
    ]


# ---------------------------------------------------------------- sections


def _shown(found: Overview) -> list[str]:
    return found.parts[: RULES.parts]


def _on(part: str) -> str:
    return f" on {part}" if part else ""


def _chosen_workloads(found: Overview, rows: Rows, *, by: str = "regret") -> Rows:
    """Rows of the workloads that a chart has panels for: those with the largest value, of regrets the widest."""
    if len(found.workloads) <= RULES.panels:
        return rows
    spread: dict[str, float] = {}
    for row in rows:
        spread[row["workload"]] = max(spread.get(row["workload"], 0.0), row.get(by) or 0.0)
    chosen = set(sorted(spread, key=lambda name: (-spread[name], name))[: RULES.panels])
    return [row for row in rows if row["workload"] in chosen]


def _which(found: Overview) -> Section:
    if not found.roles.setting or not found.done:
        return Section("Which setting")
    figures: list[Figure] = []
    if found.has_map():
        figures += _heat_maps(found)
    several = len(found.workloads) > 1
    for part in _shown(found) if several else []:
        rows = found.regret_rows(part)
        known = [row for row in rows if row["regret_mean"] is not None]
        if len(known) < 2:
            continue
        best = known[0]
        title = (
            f"{capital(best['setting'])}{_on(part)} costs {percent(best['regret_mean'])} on average, "
            f"{percent(best['regret_worst'])} at worst"
        )
        near = [row for row in known if row["regret_mean"] <= RULES.regret]
        shown = (near if len(near) >= RULES.few else known)[: RULES.settings]
        cut = f"The first {len(shown)} of {len(known)} settings. " if len(known) > len(shown) else ""
        note = f"{cut}Bar: average over the workloads. Tick: the workload it suits least."
        figures.append(figure(title, shown, charts.regret_bars, note=note, alt="Bars of average regret", half=True))
        figures += _top(found, part)
    return Section("Which setting", figures, tables=_best_table(found))


_UNEQUAL = "Time an item, as runs have unequal numbers of items."


def _heat_maps(found: Overview) -> list[Figure]:
    note = "Each cell is one setting; the ring marks the fastest."
    if found.roles.setting != ("batch_size", "num_workers"):
        note = "Each cell is the fastest of the other settings; the ring marks the fastest of all."
    if found.by_item:
        note += f" {_UNEQUAL}"
    failed = any(row["seconds"] is None for row in found.heat_rows())
    note += f" {charts.sign_text(found.heat_rows())}" if failed else ""
    if len(found.workloads) == 1 and len(found.parts) > 1:
        rows = [row for row in found.heat_rows() if row["part"] in found.parts[: RULES.panels]]
        best = {(row["batch_size"], row["num_workers"]) for row in rows if row["regret"] == 0}
        title = f"{found.workloads[0]}: {counted(len(found.parts), 'part')}, {counted(len(best), 'best setting')}"
        draw = partial(charts.heat_map, facet="part")
        return [figure(title, rows, draw, note=note, alt="Heat maps of time over batch size and workers")]
    figures = []
    for part in _shown(found):
        rows = _chosen_workloads(found, found.heat_rows(part))
        several = len({row["workload"] for row in rows}) > 1
        facet = "workload" if several else None
        title = _heat_title(found, part)
        alt = f"Heat maps of time over batch size and workers{_on(part)}, a panel for each workload"
        half = _map_is_small(rows)

        draw = partial(charts.heat_map, facet=facet)

        figures.append(figure(title, rows, draw, note=note, alt=alt, half=half))
    return figures


def _map_is_small(rows: Rows) -> bool:
    """Whether two such charts fit beside each other."""
    panels = len({row["workload"] for row in rows})
    return panels <= 2 and panels * max(2, len({row["num_workers"] for row in rows})) <= RULES.cells_across


def _heat_title(found: Overview, part: str) -> str:
    best = [row for row in found.best_rows() if row["part"] == part]
    if not best:
        return f"Nothing has finished{_on(part)}"
    settings = {row["setting"] for row in best}
    if len(best) == 1:
        return f"{best[0]['workload']} is fastest with {best[0]['setting']}{_on(part)}"
    models = capital(counted(len(best), "workload"))
    if len(settings) == 1:
        return f"{models} are all fastest with {best[0]['setting']}{_on(part)}"
    return f"{models} have {counted(len(settings), 'different best setting')}{_on(part)}"


def _top(found: Overview, part: str) -> list[Figure]:
    rows = found.top_rows(part)
    of = len({row["workload"] for row in found.best_rows() if row["part"] == part})
    if len(rows) < 2 or of < 3:
        return []
    first = rows[0]
    title = f"{capital(first['setting'])}{_on(part)} is among the three fastest for {first['count']} of {of} workloads"
    shown = rows[: RULES.settings]
    draw = partial(charts.bars, label="setting", value="count", title="workloads", unit="n")
    cut = f", the first {len(shown)} of {len(rows)}" if len(shown) < len(rows) else ""
    note = f"Settings that are among the three fastest of some workload{cut}."
    return [figure(title, shown, draw, note=note, alt="Bars of top-three counts", half=True)]


def _best_table(found: Overview) -> list[Table]:
    rows = found.best_rows()
    if not rows or len(rows) > 200:
        return []
    parts = len(found.parts) > 1
    cells = [
        [*([row["part"]] if parts else []), row["workload"], row["setting"], format_seconds(row["seconds"])]
        for row in rows
    ]
    columns = [*([found.part_title] if parts else []), "workload", "setting", f"time{_an_item(found)}"]
    return [Table("The fastest setting of each workload", columns, cells)]


def _axes(found: Overview) -> Section:
    """Lines at a fixed batch, at fixed workers, and of one workload over both; and the effect of each axis."""
    figures: list[Figure] = []
    if found.has_map():
        for axis, other, noun in (
            ("num_workers", "batch_size", "workers"),
            ("batch_size", "num_workers", "batch size"),
        ):
            for part in _shown(found) if len(found.workloads) > 1 else []:
                figures += _slice(found, part, axis, other, noun)
        figures += _one_workload(found)
    elif "batch_size" in found.roles.setting and found.cells["batch_size"].n_unique() > 1:
        for part in _shown(found):
            figures += _single_axis(found, part, "batch_size", "batch size")
    elif "num_workers" in found.roles.setting and found.cells["num_workers"].n_unique() > 1:
        for part in _shown(found):
            figures += _single_axis(found, part, "num_workers", "workers")
    figures += _first_batches(found)
    figures += _effects(found)
    return Section("What batch size and workers do", figures)


def _slice(found: Overview, part: str, axis: str, fixed: str, noun: str) -> list[Figure]:
    value = found.middle(part, fixed)
    rows = _chosen_workloads(found, found.slice_rows(part, axis, fixed=fixed, value=value))
    if len({row[axis] for row in rows}) < 2:
        return []
    at = setting_text(value, None) if fixed == "batch_size" else setting_text(None, value)
    fastest: dict[str, Any] = {}
    for row in sorted(rows, key=lambda row: row["seconds"]):
        fastest.setdefault(row["workload"], row[axis])
    low, high = min(fastest.values()), max(fastest.values())
    what = "worker count" if axis == "num_workers" else "batch size"
    if len(fastest) == 1:
        title = f"With {at}{_on(part)}, {next(iter(fastest))} is fastest with {_axis_text(axis, low)}"
    elif low == high:
        title = f"With {at}{_on(part)}, all are fastest with {_axis_text(axis, low)}"
    else:
        title = f"With {at}{_on(part)}, the best {what} lies between {low} and {high}"
    return [
        _line_figure(
            title,
            rows,
            axis,
            noun,
            f"Time over {noun}, {at}",
            half=len(found.workloads) <= RULES.colours,
            by_item=found.by_item,
        )
    ]


def _axis_text(axis: str, value: Any) -> str:
    return setting_text(value, None) if axis == "batch_size" else setting_text(None, value)


def _line_figure(
    title: str, rows: Rows, x: str, x_title: str, alt: str, *, half: bool, by_item: bool, y: str = "seconds"
) -> Figure:
    """Lines coloured by workload where there are few of them, else a panel each."""
    few = len({row["workload"] for row in rows}) <= RULES.colours
    colour, facet = ("workload", None) if few else (None, "workload")
    y_title = "time an item" if by_item else "time of a run"

    draw = partial(
        charts.lines,
        x=x,
        y=y,
        colour=colour,
        facet=facet,
        x_title=x_title,
        y_title=y_title,
        logarithmic=few and _wide(rows, y),
        independent_y=not few,
    )

    return figure(title, rows, draw, alt=alt, half=half and few)


def _wide(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether values lie so far apart that a linear axis would hide the small ones."""
    values = [row[name] for row in rows if row.get(name)]
    return bool(values) and max(values) > 12 * min(values) > 0


def _one_workload(found: Overview) -> list[Figure]:
    workload = found.widest()
    if workload is None:
        return []
    figures = []
    for part in _shown(found):
        rows = [row for row in found.workload_rows(workload) if row["part"] == part]
        if len(rows) < 4:
            continue
        best = min(rows, key=lambda row: row["seconds"])
        over_workers = [row["seconds"] for row in rows if row["batch_size"] == best["batch_size"]]
        over_sizes = [row["seconds"] for row in rows if row["num_workers"] == best["num_workers"]]
        title = (
            f"{workload}{_on(part)}: workers change the time {fold(max(over_workers) / best['seconds'])}, "
            f"the batch size {fold(max(over_sizes) / best['seconds'])}"
        )
        rows = [
            {**row, "batch": f"{row['batch_size']:,}"}
            for row in sorted(rows, key=lambda row: (row["batch_size"], row["num_workers"]))
        ]

        draw = partial(
            charts.lines,
            x="num_workers",
            colour="batch",
            x_title="workers",
            y_title="time an item" if found.by_item else "time of a run",
            logarithmic=_wide(rows, "seconds"),
        )

        note = "One line a batch size. The workload whose settings differ most."
        figures.append(figure(title, rows, draw, note=note, alt="Seconds over workers by batch size", half=True))
    return figures


def _single_axis(found: Overview, part: str, axis: str, noun: str) -> list[Figure]:
    rows = [row for row in _chosen_workloads(found, found.heat_rows(part)) if row["seconds"] is not None] or [
        row for row in _axis_rows(found, part, axis) if row["seconds"] is not None
    ]
    if len({row[axis] for row in rows}) < 2:
        return []
    title = _heat_title(found, part)
    return [_line_figure(title, rows, axis, noun, f"Time over {noun}", half=True, by_item=found.by_item)]


def _axis_rows(found: Overview, part: str, axis: str) -> Rows:
    """Times over the only axis of a setting."""
    rows = found.cells.filter(found.cells["part"] == part)
    return rows.select("workload", "part", axis, "seconds", "regret").to_dicts()


def _first_batches(found: Overview) -> list[Figure]:
    rows = [row for row in found.first_batch_rows() if row["part"] in _shown(found)]
    if len({row["num_workers"] for row in rows}) < 2:
        return []
    shortest, longest = (pick(rows, key=lambda row: row["latency_s"]) for pick in (min, max))
    title = (
        f"The first batch takes {format_seconds(shortest['latency_s'])} with {_setting_of(shortest)}, "
        f"and {format_seconds(longest['latency_s'])} with {_setting_of(longest)}"
    )
    rows = [{**row, "batch": f"{row['batch_size']:,}"} for row in rows]
    facet = "part" if len(found.parts) > 1 else None

    draw = partial(
        charts.lines,
        x="num_workers",
        y="latency_s",
        colour="batch",
        facet=facet,
        x_title="workers",
        y_title="time to the first batch",
    )

    return [
        figure(
            title, rows, draw, note="Median over the workloads, by batch size.", alt="First-batch latency over workers"
        )
    ]


def _setting_of(row: Mapping[str, Any]) -> str:
    return setting_text(row["batch_size"], row["num_workers"])


def _effects(found: Overview) -> list[Figure]:
    rows = found.effect_rows()
    axes = [axis for axis in dict.fromkeys(row["axis"] for row in rows) if sum(r["axis"] == axis for r in rows) > 1]
    rows = [row for row in rows if row["axis"] in axes[:9]]
    if not rows:
        return []
    strongest = max(rows, key=lambda row: abs(_log(row["ratio"])))
    instead = f"{strongest['axis']}: {strongest['value']} instead of {strongest['reference']}"
    title = f"The strongest effect is {instead}: {times(strongest['ratio'])} the time"
    note = "All else equal. Point: geometric mean over pairs of cells. Line: their quartiles."
    return [figure(title, rows, charts.ratios, note=note, alt="Effect of each value of each axis")]


def _log(ratio: float) -> float:
    from math import log

    return log(ratio) if ratio > 0 else 0.0


def _stages(found: Overview) -> Section:
    figures: list[Figure] = []
    for clock, where in (("loop", "of the run"), ("worker", "of the workers' time")):
        rows = found.stage_rows(clock=clock)
        for part in _shown(found):
            chosen = _largest_stage_workloads([row for row in rows if row["part"] == part])
            if not chosen:
                continue
            shares: dict[str, list[float]] = {}
            for row in chosen:
                shares.setdefault(row["stage"], []).append(row["share"] or 0.0)
            cells = len({(row["workload"], row.get("batch_size")) for row in chosen})
            first = max(shares, key=lambda name: sum(shares[name]))
            share = percent(sum(shares[first]) / cells)
            title = f"{_STAGE_WORDS.get(first, capital(first))} takes {share} {where}{_on(part)}"
            several = len({row["workload"] for row in chosen}) > 1
            batches = len({row.get("batch_size") for row in chosen}) > 1
            x, x_title = ("batch_size", "batch size") if batches else ("workload", "workload")
            facet = "workload" if several and batches else None
            for normalised in (False, True) if clock == "loop" else (True,):
                draw = partial(charts.stage_bars, x=x, x_title=x_title, facet=facet, normalised=normalised)

                words = f"{title}" if not normalised or clock == "worker" else f"Shares of each stage{_on(part)}"
                note = "Means over the other settings."
                figures.append(
                    figure(
                        words,
                        chosen,
                        draw,
                        note=note,
                        alt="Stages stacked",
                        half=facet is None or len({row["workload"] for row in chosen}) <= 2,
                    )
                )
    return Section("Where the time goes", figures)


_STAGE_WORDS = {
    "wait": "Waiting for data",
    "forward": "The forward pass",
    "backward": "The backward pass",
    "step": "The step",
    "copy": "Copying",
    "decode": "Decoding",
    "read": "Reading",
    "transform": "Transforming",
    "collate": "Collating",
    "send": "Sending batches",
}


def _largest_stage_workloads(rows: Rows) -> Rows:
    names = list(dict.fromkeys(row["workload"] for row in rows))
    if len(names) <= RULES.panels:
        return rows
    totals = {name: sum(row["seconds"] for row in rows if row["workload"] == name) for name in names}
    chosen = set(sorted(names, key=lambda name: -totals[name])[: RULES.panels])
    return [row for row in rows if row["workload"] in chosen]


def _per_item(found: Overview) -> Section:
    figures: list[Figure] = []
    rows = found.item_rows()
    for part in _shown(found):
        for family, noun in _FAMILIES.items():
            chosen = [row for row in rows if row["part"] == part and row["family"].lower() == family]
            chosen = _chosen_workloads(found, chosen, by="item_s")
            if len({row["batch_size"] for row in chosen}) < 2:
                continue
            fastest, slowest = (pick(chosen, key=lambda row: row["item_s"]) for pick in (min, max))
            where = "" if part.lower() == family else _on(part)
            title = f"{noun}{where}: from {_item_text(fastest)} an item to {_item_text(slowest)}"
            alt = "Seconds an item over batch size"
            figures.append(
                _line_figure(title, chosen, "batch_size", "batch size", alt, half=True, y="item_s", by_item=True)
            )
    what = "Without the batches that warm up" if found.warmed_up else "The whole run divided by its items"
    text = f"{what}, at the fastest worker count of each batch size." if figures else ""
    return Section("Seconds an item", figures, text)


_FAMILIES = {"cnn": "CNNs", "transformer": "Transformers", "device": "Devices that sleep"}


def _item_text(row: Mapping[str, Any]) -> str:
    return f"{format_seconds(row['item_s'])} ({row['workload']}, batch {row['batch_size']:,})"


def _gauges(found: Overview) -> Section:
    rows = found.gauge_rows()
    if len({(row["batch_size"], row["num_workers"]) for row in rows}) < 2:
        return Section("Processors and memory")
    figures = []
    for gauge in dict.fromkeys(row["gauge"] for row in rows):
        chosen = [{**row, "batch": f"{row['batch_size']:,}"} for row in rows if row["gauge"] == gauge]
        top = max(chosen, key=lambda row: row["value"])
        title = f"{capital(gauge)}: largest with {_setting_of(top)}"
        several = len({row["num_workers"] for row in chosen}) > 1
        x, colour = ("num_workers", "batch") if several else ("batch_size", None)

        x_title = "workers" if x == "num_workers" else "batch size"
        unit = gauge.rpartition("(")[2].rstrip(")") if "(" in gauge else "cores"
        form: charts.Unit = "%" if unit == "share" else "B" if unit == "bytes" else ""
        draw = partial(charts.lines, x=x, y="value", colour=colour, x_title=x_title, y_title=unit, unit=form)

        figures.append(figure(title, chosen, draw, note="Median over the workloads.", alt=gauge, half=True))
    return Section("Processors and memory", figures)


def _predictions(found: Overview) -> Section:
    rows = found.prediction_rows()
    if not rows:
        return Section("Predicted and measured")
    errors = sorted(abs(row["error"]) for row in rows)
    middle, high = errors[len(errors) // 2], errors[min(len(errors) - 1, int(len(errors) * 0.9))]
    title = f"Predictions are {percent(middle)} off at the median, {percent(high)} at the 90th percentile"
    cut = _thinned(rows)
    note = f"{_every(rows, cut)}The dashed line: predicted equals measured."

    colour = "part" if len(found.parts) > 1 else None
    draw = partial(
        charts.scatter,
        x="seconds",
        y="predicted_s",
        x_title="measured time",
        y_title="predicted time",
        label="setting",
        colour=colour,
    )

    return Section("Predicted and measured", [figure(title, cut, draw, note=note, alt="Predicted over measured time")])


def _thinned(rows: Rows) -> Rows:
    step = -(-len(rows) // RULES.points) or 1
    return rows[::step]


def _every(rows: Rows, cut: Rows) -> str:
    return f"{len(cut):,} of {len(rows):,} points. " if len(cut) < len(rows) else ""


def _against(frame: "pl.DataFrame", other: Against) -> Section:
    rows = compared_rows(frame, other.frame)
    title = f"Beside {other.name}"
    if not rows:
        return Section(title, tables=[Table("", ["nothing in common"], [["The two share no setting of a workload."]])])
    ratios = sorted(row["ratio"] for row in rows)
    middle, unit = ratios[len(ratios) // 2], rows[0]["unit"]
    names = short_names(row["workload"] for row in rows)
    rows = [{**row, "workload": names[row["workload"]]} for row in rows]
    spread = f"at the median ({ratios[0]:.2g} to {ratios[-1]:.2g} times)"
    same = f"The same {counted(len(rows), 'setting')} {'takes' if len(rows) == 1 else 'take'}"
    what = (
        f"The largest batch here is {times(middle)} theirs"
        if unit == "batch"
        else f"{same} {times(middle)} as long here"
    )
    cut = _thinned(rows)
    several = len({row.get("data") for row in rows}) > 1
    draw = partial(
        charts.scatter,
        x="theirs",
        y="ours",
        x_title=f"{other.name}: {_UNITS[unit]}",
        y_title=f"here: {_UNITS[unit]}",
        label="setting",
        colour="data" if several else "workload" if len(names) <= RULES.colours else None,
        unit="n" if unit == "batch" else "s",
    )
    items = " Runs differ in their number of items." if unit == "item" else ""
    note = f"{_every(rows, cut)}The dashed line: equal.{items}"
    found = figure(f"{what}, {spread}", cut, draw, note=note, alt="Values here over values there")
    return Section(title, [found], other.about)


_UNITS = {
    "run": "time of a run",
    "item": "time an item",
    "steady": "time an item after the warm-up",
    "batch": "largest batch",
}


def _limits(found: Overview, about: StudyAbout) -> Section:
    rows = found.limit_rows() if about.kind == "limit" or "max_batch" in found.frame.columns else []
    if not rows:
        return Section("The largest batch")
    rows = sorted(rows, key=lambda row: (row["part"], -row["largest"], row["workload"]))
    ratio = max(row["largest"] for row in rows) / max(1, min(row["largest"] for row in rows))
    title = f"The largest batch differs {fold(ratio)} between {counted(len(found.workloads), 'workload')}"
    several = len(found.parts) > 1

    colour = "part" if several else None
    draw = partial(charts.bars, label="workload", value="largest", title="largest batch", unit="n", colour=colour)

    return Section("The largest batch", [figure(title, rows, draw, alt="Bars of the largest batch of each workload")])


def _samples(trials: Sequence[Trial]) -> Section:
    """The waits of single runs in order, and the timeline of the first: the fastest setting of the widest workload."""
    done = [trial for trial in trials if trial.outcome == "done" and trial.timeline.got_s]
    if not done:
        return Section("Single runs")
    rows: Rows = []
    labels: dict[str, Trial] = {}
    for trial in done:
        labels.setdefault(setting_text(trial.setting.batch_size, trial.setting.num_workers), trial)
    for label, trial in labels.items():
        rows += [{"run": label, **row} for row in wait_rows(trial)]
    longest = max(rows, key=lambda row: row["wait_s"])
    title = (
        f"The longest wait is {format_seconds(longest['wait_s'])}, for batch {longest['batch']} with {longest['run']}"
    )

    draw = partial(
        charts.bars_in_order,
        x="batch",
        y="wait_s",
        x_title="batch",
        y_title="wait",
        facet="run" if len(labels) > 1 else None,
    )

    name = done[0].workload
    subject = name.device if name.device.startswith("sleep:") else name.name
    text = f"{subject} on {name.data}: the workload whose settings differ most, at its best batch size."
    epochs = _epoch_figure(done)
    waits = figure(title, rows, draw, note="The wait of each batch, in order.", alt="Wait of each batch in order")
    return Section("Single runs", [*epochs, waits, *timeline_figure(done[0]), *gauge_figure(done[0])], text)


def _epoch_figure(done: Sequence[Trial]) -> list[Figure]:
    """The time of each epoch, of runs with at least three."""
    first, *later = done[0].timeline.epoch_s or (0.0,)
    if len(later) < 2:
        return []
    setting = setting_text(done[0].setting.batch_size, done[0].setting.num_workers)
    rows = [{"epoch": place, "epoch_s": seconds} for place, seconds in enumerate((first, *later), start=1)]
    middle = sorted(later)[len(later) // 2]
    title = f"The first epoch takes {format_seconds(first)}, the others {format_seconds(middle)} at the median"
    draw = partial(charts.bars_in_order, x="epoch", y="epoch_s", x_title="epoch", y_title="seconds")
    return [figure(title, rows, draw, note=f"With {setting}.", alt="Seconds of each epoch")]


def _failures(found: Overview) -> Section:
    rows = found.problems()
    if not rows:
        return Section("What failed")
    table = Table(
        "",
        ["runs", "outcome", "problem"],
        [[f"{row['trials']:,}", row["outcome"].replace("_", " "), row["problem"]] for row in rows],
    )
    return Section("What failed", tables=[table])
