"""The largest batch, as people read it."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stoker.tune.limit import Limit
from stoker.units import format_bytes, format_seconds


def limit_view(limit: Limit) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    low, high = limit.interval
    rows = {
        "largest batch": f"{limit.max_batch}, expected between {low} and {high}",
        "without cache retries": str(limit.comfortable_batch),
        "memory": f"{format_bytes(limit.gpu_memory_bytes)} for tensors",
        "needed": f"{format_bytes(limit.peak_bytes_at_max)} at that batch: "
        f"{format_bytes(limit.fixed_bytes)} fixed, {format_bytes(limit.bytes_per_item)} an item",
    }
    if limit.unseen:
        rows["not counted"] = ", ".join(limit.unseen)
    for label, value in rows.items():
        table.add_row(label, value)
    what = ", ".join([limit.mode, limit.precision, *([limit.optimizer] if limit.optimizer else [])])
    note = (
        "Predicted, not run: one step was followed on a GPU that is not there. The CUDA context and other processes "
        "take their share beside this; the lower end of the interval is the careful choice. "
        f"({format_seconds(limit.seconds)})"
    )
    return Group(Text.assemble((limit.workload, "bold"), f" · {what}"), Text(), table, Text(), Text(note, style="dim"))
