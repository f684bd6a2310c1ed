"""The page of predictions: what settings would cost, from probes."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from stoker.analysis.series import prediction_rows, probe_rows, setting_text
from stoker.records import Prediction, Probes
from stoker.report import charts
from stoker.report.html import Card, Figure, Page, Section
from stoker.report.pages.parts import capital, counted, figure, percent, short_names, times
from stoker.units import format_bytes, format_seconds


def prediction_page(
    probes: Probes | None, predictions: Sequence[Prediction] = (), asked: Prediction | None = None
) -> Page:
    """What settings would cost. `asked` is the one in question; without it the page answers with the best."""
    everything = list(predictions) or ([asked] if asked else [])
    sections = [
        Section("Predicted time", [*_map(everything), *_rates(everything)]),
        Section("What was probed", _probes(probes)),
    ]
    drawn = [section for section in sections if section.figures]
    subject = probes.subject if probes else None
    name = short_names([subject.name])[subject.name] if subject else "Prediction"
    subtitle = (
        f"{subject.data} · {subject.mode} on {subject.device} · predicted from probes"
        if subject
        else "predicted from probes"
    )
    return Page(
        "prediction", name, subtitle, _cards(everything, asked), drawn, _facts(probes), probes.notes if probes else ()
    )


def _cards(found: Sequence[Prediction], asked: Prediction | None) -> list[Card]:
    cards = []
    if asked is not None:
        cards.append(_card("this setting", asked))
    best = min(found, key=lambda each: each.total_s, default=None)
    if best is not None and best != asked:
        cards.append(_card("least predicted time", best))
        if asked is not None:
            cards.append(
                Card(
                    about="gain",
                    answer=f"{capital(times(asked.total_s / best.total_s))} as fast",
                    detail="predicted, not run",
                )
            )
    return cards


def _card(about: str, each: Prediction) -> Card:
    low, high = each.interval_s
    setting = setting_text(each.setting.batch_size, each.setting.num_workers)
    detail = (
        f"{format_seconds(each.total_s)} ({format_seconds(low)} to {format_seconds(high)}) for {each.items:,} items; "
        f"the device waits {percent(each.wait_share)} of the time; limited by {each.limited_by}"
    )
    return Card(about=about, answer=capital(setting), detail=detail)


def _map(found: Sequence[Prediction]) -> list[Figure]:
    rows = prediction_rows(found)
    if len(rows) < 2:
        return []
    best = min(found, key=lambda each: each.total_s)
    near = sum(1 for row in rows if row["regret"] <= 0.05)
    setting = setting_text(best.setting.batch_size, best.setting.num_workers)
    within = f"; {counted(near - 1, 'other')} within 5 %" if near > 1 else ""
    title = f"{capital(setting)} is predicted to be fastest{within}"
    draw = charts.heat_map
    return [
        figure(
            title,
            rows,
            draw,
            note="Numbers: predicted seconds. Ring: the least.",
            alt="Predicted time over batch size and workers",
        )
    ]


def _rates(found: Sequence[Prediction]) -> list[Figure]:
    rows = [{**row, "batch": f"{row['batch_size']:,}"} for row in prediction_rows(found)]
    if len({row["num_workers"] for row in rows}) < 2:
        return []
    top = max(rows, key=lambda row: row["items_per_s"])
    first = max(rows, key=lambda row: row["first_batch_s"])

    def lines(y: str, title: str, unit: charts.Unit) -> Any:
        return partial(charts.lines, x="num_workers", y=y, colour="batch", x_title="workers", y_title=title, unit=unit)

    where, when = (setting_text(row["batch_size"], row["num_workers"]) for row in (top, first))
    rate = f"The steady rate reaches {top['items_per_s']:,.0f} items/s with {where}"
    delay = f"The first batch takes up to {format_seconds(first['first_batch_s'])}, with {when}"
    return [
        figure(rate, rows, lines("items_per_s", "items per second", ""), alt="Predicted rate over workers", half=True),
        figure(
            delay,
            rows,
            lines("first_batch_s", "time to the first batch", "s"),
            alt="Predicted first batch over workers",
            half=True,
        ),
    ]


def _probes(probes: Probes | None) -> list[Figure]:
    rows = probe_rows(probes) if probes else []
    if not rows:
        return []
    rows = [{**row, "label": f"{row['run']}, {setting_text(row['batch_size'], row['num_workers'])}"} for row in rows]
    title = f"{capital(counted(len(rows), 'short run'))} took {format_seconds(probes.seconds)}" if probes else ""
    draw = partial(charts.strip, label="label", value="item_s", title="time an item")
    return [figure(title, rows, draw, alt="Seconds an item of each probe")]


def _facts(probes: Probes | None) -> dict[str, str]:
    if probes is None:
        return {}
    facts = probes.machine
    return {
        "machine": f"{facts.usable_cores:g} usable CPUs, {format_bytes(facts.available_bytes)} of memory available",
        "probed in": format_seconds(probes.seconds),
    }
