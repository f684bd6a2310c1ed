"""The page of the largest batch: what fits, memory over batch size, the tries; and of methods side by side."""

from functools import partial
from typing import Any

from stoker.analysis.series import alive_rows, memory_rows, part_rows
from stoker.records import Limit, Machine, MethodComparison
from stoker.report import charts
from stoker.report.html import Card, Figure, Page, Section, Table
from stoker.report.pages.parts import capital, figure, machine_facts, moment, percent, short_names, software_facts
from stoker.units import format_bytes, format_seconds


def limit_page(limit: Limit, *, machine: Machine | None = None) -> Page:
    """The largest batch and why."""
    what = ", ".join([limit.mode, limit.precision, *([limit.optimizer] if limit.optimizer else [])])
    figures = [*_memory(limit), *_parts(limit), *_alive(limit), *_times(limit)]
    facts = {
        **(machine_facts(machine) if machine else software_facts(limit.software)),
        "date": moment(limit.when),
        "memory": f"{format_bytes(limit.gpu_memory_bytes)} for tensors ({limit.memory})",
        "method": f"{limit.method}, {format_seconds(limit.seconds)}",
        "not counted": ", ".join(limit.unseen),
    }
    sections = [
        Section("Memory over batch size", figures, tables=_tries(limit)),
        Section("What would help", tables=_remedies(limit)),
    ]
    drawn = [section for section in sections if section.figures or section.tables]
    return Page("limit", short_names([limit.workload])[limit.workload], what, _cards(limit), drawn, facts, limit.notes)


def _cards(limit: Limit) -> list[Card]:
    low, high = limit.interval
    failed = [each.batch_size for each in limit.probes if each.outcome != "done" and each.batch_size > limit.max_batch]
    if limit.ran:
        detail = "It ran" + (f"; {min(failed):,} did not" if failed else "")
    else:
        detail = f"Expected between {low:,} and {high:,}; not run"
    cards = [Card(about="largest batch", answer=f"Batch {limit.max_batch:,}", detail=detail)]
    if limit.peak_bytes_at_max:
        needed = f"{format_bytes(limit.fixed_bytes)} fixed, {format_bytes(limit.bytes_per_item)} an item"
        cards.append(Card(about="memory needed", answer=format_bytes(limit.peak_bytes_at_max), detail=needed))
    if limit.comfortable_batch is not None:
        cards.append(
            Card(
                about="without retries of the allocator",
                answer=f"Batch {limit.comfortable_batch:,}",
                detail="The cache has room; no step is slowed down by freeing it",
            )
        )
    if limit.remedies:
        best = max(limit.remedies, key=lambda each: each.max_batch)
        cards.append(
            Card(
                about="what would help most", answer=capital(best.what), detail=f"batch {best.max_batch:,}: {best.how}"
            )
        )
    return cards


def _memory(limit: Limit) -> list[Figure]:
    rows = memory_rows(limit)
    if not rows:
        return []
    title = (
        f"Each item takes {format_bytes(limit.bytes_per_item)} beside {format_bytes(limit.fixed_bytes)} that are fixed"
    )
    if not limit.bytes_per_item:
        title = f"Batch {limit.max_batch:,} is the largest that ran"
    done = sum(1 for each in limit.probes if each.outcome == "done")
    tries = (
        f" {done} tries ran, {len(limit.probes) - done} failed; a failed one is drawn at the budget."
        if limit.probes
        else ""
    )
    note = f"Dashed: the budget of {format_bytes(limit.gpu_memory_bytes)}.{tries}"
    draw = partial(charts.memory_line, budget_bytes=limit.gpu_memory_bytes)
    return [figure(title, rows, draw, note=note, alt="Memory over batch size")]


def _parts(limit: Limit) -> list[Figure]:
    rows = part_rows(limit)
    if len(rows) < 2 or not limit.peak_bytes_at_max:
        return []
    share = limit.fixed_bytes / limit.gpu_memory_bytes
    title = f"Weights and other fixed parts take {percent(share)} of the memory"
    draw = partial(charts.bars, label="part", value="bytes", title="memory", unit="B")
    return [figure(title, rows, draw, note=f"At batch {limit.max_batch:,}.", alt="Memory by part", half=True)]


def _alive(limit: Limit) -> list[Figure]:
    rows = alive_rows(limit)
    total = sum(row["bytes"] for row in rows)
    if not total:
        return []
    top = rows[0]
    verb = "take" if top["operator"] == "parameters and buffers" else "takes"
    title = f"At the peak of a step, {top['operator']} {verb} {percent(top['bytes'] / total)} of what is alive"
    draw = partial(
        charts.bars, label="operator", value="bytes", title="memory", unit="B", colour="since", grouped=False
    )
    note = f"{format_bytes(total)} at batch {limit.max_batch:,}, by the operator that allocated it. Traced, not run."
    alt = "Memory that is alive at the peak of a step, by operator"
    return [figure(title, rows, draw, note=note, alt=alt, half=True)]


def _times(limit: Limit) -> list[Figure]:
    rows = [
        {"batch_size": each.batch_size, "item_s": min(each.step_s) / each.batch_size}
        for each in sorted(limit.probes, key=lambda each: each.batch_size)
        if each.outcome == "done" and each.step_s
    ]
    if len(rows) < 2:
        return []
    best = min(rows, key=lambda row: row["item_s"])
    title = f"A step is fastest per item at batch {best['batch_size']:,}: {format_seconds(best['item_s'])}"
    draw = partial(charts.lines, x="batch_size", y="item_s", x_title="batch size", y_title="time an item")
    return [
        figure(
            title, rows, draw, note="The fastest step of each try.", alt="Step time an item over batch size", half=True
        )
    ]


def _tries(limit: Limit) -> list[Table]:
    cells = [
        [
            f"{each.batch_size:,}",
            each.outcome.replace("_", " "),
            format_bytes(each.peak_bytes),
            format_bytes(each.reserved_bytes),
            str(each.retries),
            format_seconds(each.seconds),
        ]
        for each in limit.probes
    ]
    return (
        [
            Table(
                "Tries, each in a process of its own",
                ["batch", "outcome", "peak", "reserved", "retries", "time"],
                cells,
            )
        ]
        if cells
        else []
    )


def _remedies(limit: Limit) -> list[Table]:
    cells = [
        [each.what, f"{each.max_batch:,}", f"{each.predicted_batch:,}" if each.predicted_batch else "–", each.how]
        for each in limit.remedies
    ]
    return [Table("", ["change", "largest batch", "predicted", "how"], cells)] if cells else []


def comparison_page(found: MethodComparison) -> Page:
    """Every method's answer side by side."""
    rows: list[dict[str, Any]] = [
        {"method": row.method, "max_batch": row.limit.max_batch, "seconds": row.limit.seconds, "error": row.error}
        for row in found.rows
        if row.limit is not None
    ]
    cells = [
        [
            row.method,
            f"{row.limit.max_batch:,}" if row.limit else "–",
            f"{row.error:+.1%}" if row.error is not None else "–",
            format_seconds(row.limit.seconds) if row.limit else "–",
            row.problem or "",
        ]
        for row in found.rows
    ]
    figures = []
    if rows:
        most = max(rows, key=lambda row: row["max_batch"])
        title = f"The methods say between {min(row['max_batch'] for row in rows):,} and {most['max_batch']:,}"

        draw = partial(charts.bars, label="method", value="max_batch", title="largest batch", unit="n")

        figures.append(figure(title, rows, draw, alt="Largest batch by method"))
    table = Table("", ["method", "largest batch", "error", "time", "problem"], cells)
    name = short_names([found.workload])[found.workload]
    return Page("limit", name, "every method", (), [Section("Methods", figures, tables=[table])], {})
