"""What does a recorded step on a GPU take that our log of the same step does not, and the other way round?

python benchmarks/history_diff.py FILE...                   replays every history and compares the peaks
python benchmarks/history_diff.py --diff FILE [--phase step2] [--least 1MiB]     event by event, by operator

FILE is a recorded allocation history, JSON or gzip JSON; its name is a model that Stoker knows.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common import arguments, say, write
from history import History, Life, difference, lives_of_history, lives_of_log, load, replay_history

from stoker.events import OnEvent
from stoker.measure.session import open_workload
from stoker.memory.replay import replay
from stoker.memory.trace.log import AllocationLog
from stoker.process import child
from stoker.records import OptimizerName, Setting, WorkloadSpec
from stoker.units import format_bytes, parse_bytes
from stoker.workload.optimizers import OPTIMIZERS


def log_of(history: History) -> AllocationLog:
    source = WorkloadSpec(spec=history.name, data=None if ":" in history.name else "device")
    setting = Setting(precision=history.precision, channels_last=history.channels_last)
    what = (source, history.mode, setting, history.optimizer)
    return child.value(child.run(_record, what, kind=AllocationLog, stall_s=300))


def _record(
    source: WorkloadSpec, mode: Any, setting: Setting, optimizer: OptimizerName | None, emit: OnEvent
) -> AllocationLog:
    from stoker.memory.trace import follow

    workload = open_workload(source, mode, emit)
    if optimizer is not None:
        workload = workload.with_(optimizer=OPTIMIZERS[optimizer])
    return follow.record(workload, mode, setting)


def compare(history: History) -> dict[str, Any]:
    """A history's own peaks, its replay's, and those of a log of the same step."""
    again = replay_history(history)
    logged = replay(log_of(history), history.batch_size, history.cap_bytes or 2**60, steps=history.steps)
    stats = history.stats
    return {
        "model": history.name,
        "mode": history.mode,
        "precision": history.precision,
        "optimizer": history.optimizer,
        "batch_size": history.batch_size,
        "allocated_peak_bytes": stats.allocated_peak,
        "reserved_peak_bytes": stats.reserved_peak,
        "replay_allocated_error": again.allocated_peak_bytes / stats.allocated_peak - 1,
        "replay_reserved_error": again.reserved_peak_bytes / stats.reserved_peak - 1,
        "log_allocated_error": logged.allocated_peak_bytes / stats.allocated_peak - 1,
        "log_reserved_error": logged.reserved_peak_bytes / stats.reserved_peak - 1,
    }


def show(history: History, phase: str, least_bytes: int) -> None:
    log = log_of(history)
    found = difference(
        lives_of_history(history, phase),
        lives_of_log(log, history.batch_size, phase, scratch=True),
        least_bytes=least_bytes,
    )
    say(f"{history.name} at {history.batch_size}, {phase}: {found.matched} births in both")
    for title, lives in (("only recorded", found.only_recorded), ("only in the log", found.only_logged)):
        say(f"\n{title}: {format_bytes(sum(life.size for life in lives))}")
        _table(lives)
    say("\nlonger (+) or shorter (-) recorded than logged, in births")
    counted = Counter(
        (entry.recorded_operator, entry.logged_operator, entry.size, entry.births) for entry in found.longer
    )
    for (operator, logged, size, births), count in counted.most_common(40):
        say(f"{count:5d} x {format_bytes(size):>10s} {births:+5d}  {operator}  |  {logged}")
    left, right = found.recorded_peak, found.logged_peak
    say(f"\npeak recorded {format_bytes(left.size)} after birth {left.born} ({left.operator})")
    say(f"peak logged   {format_bytes(right.size)} after birth {right.born} ({right.operator})")
    for size in sorted({*left.sizes, *right.sizes}, reverse=True):
        apart = left.sizes.get(size, 0) - right.sizes.get(size, 0)
        if apart:
            say(f"{apart:+5d} x {format_bytes(size):>10s}  = {format_bytes(abs(apart) * size)}")


def _table(lives: Iterable[Life]) -> None:
    counted = Counter((life.operator, life.size, _span(life)) for life in lives)
    for (operator, size, span), count in sorted(counted.items(), key=lambda entry: -entry[0][1] * entry[1])[:40]:
        say(f"{count:5d} x {format_bytes(size):>10s}  {span:9s}  {operator}")


def _span(life: Life) -> str:
    if life.died is None:
        return "kept"
    return "transient" if life.died - life.born <= 1 else f"{life.died - life.born} births"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--diff", action="store_true")
    parser.add_argument("--phase", default="step2")
    parser.add_argument("--least", default="64KiB")
    options = parser.parse_args()
    rows = []
    for file in options.files:
        history = load(file)
        if options.diff:
            show(history, options.phase, parse_bytes(options.least))
            continue
        rows.append(row := compare(history))
        errors = "  ".join(f"{row[f'{who}_{what}_error']:+7.2%}" for who in ("replay", "log") for what in KINDS)
        say(f"{row['model']:16s} {row['mode']:5s} {row['precision']:4s} {row['batch_size']:5d}  {errors}")
    if rows:
        write(options.output, "history-diff", rows)


KINDS = ("allocated", "reserved")

if __name__ == "__main__":
    main()
