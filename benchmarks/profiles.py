"""Where the time goes on a GPU: two models, inference and training, two worker counts, two kinds of data.

python benchmarks/profiles.py --output benchmarks/results/h200
"""

import gzip
from itertools import product
from typing import Any

import msgspec
from common import arguments, say, unplaced, write

import stoker
from stoker.analysis.spans import steady, whole
from stoker.analysis.verdict import verdict
from stoker.records import encode


def grid() -> list[dict[str, Any]]:
    """Fewer batches where one worker decodes alone: it is the same, batch after batch."""
    names = ("model", "mode", "data", "workers")
    cells = product(("resnet18", "vit_b_16"), ("infer", "train"), ("jpeg", "tensors"), (1, 8))
    made = [dict(zip(names, cell, strict=True)) for cell in cells]
    return [{**cell, "batches": 16 if (cell["data"], cell["workers"]) == ("jpeg", 1) else 50} for cell in made]


def row(cell: dict[str, Any], trial: stoker.Trial) -> dict[str, Any]:
    run, calm, judged = whole(trial), steady(trial), verdict(trial)
    assert calm is not None and judged is not None  # noqa: PT018
    return {
        **cell,
        "batch_size": trial.setting.batch_size,
        "total_s": trial.total_s,
        "start_s": trial.start_s,
        "first_batch_s": trial.first_batch_s,
        "items_per_s": run.items_per_s,
        "steady_items_per_s": calm.items_per_s,
        "device_busy": calm.busy,
        "loop_share": {name: calm.share(name) for name in calm.loop_s},
        "worker_share": {name: calm.share(name) for name in calm.worker_parts},
        "gpu_utilisation": trial.gauges["gpu_utilisation"].average if "gpu_utilisation" in trial.gauges else None,
        "bottleneck": judged.bottleneck,
        "sentence": judged.sentence,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--batches", type=int, help="for every cell, in place of 50 (16 for JPEG with one worker)")
    options = parser.parse_args()
    rows, trials = [], []
    say("model     mode   data     workers   items/s   steady   wait   busy   first batch   bottleneck")
    for cell in grid():
        trial = stoker.profile(
            stoker.WorkloadSpec(spec=cell["model"], data=cell["data"], items=options.batch_size * 64),
            stoker.Setting(batch_size=options.batch_size, num_workers=cell["workers"]),
            stoker.Extent(batches=options.batches or cell["batches"]),
            mode=cell["mode"],
            device=options.device,
        )
        assert trial.outcome == "done", trial.problem
        assert trial.machine is not None
        trials.append(msgspec.structs.replace(trial, machine=unplaced(trial.machine)))
        rows.append(found := row(cell, trial))
        what = f"{cell['model']:9s} {cell['mode']:6s} {cell['data']:8s} {cell['workers']:7d}"
        rates = f"{found['items_per_s']:7.0f}   {found['steady_items_per_s']:6.0f}"
        shares = f"{found['loop_share'].get('wait', 0):4.0%}   {found['device_busy']:4.0%}"
        first_s = found["start_s"] + found["first_batch_s"]
        say(f"{what}   {rates}   {shares}   {first_s:9.2f} s   {found['bottleneck']}")
        write(options.output, "profiles", rows)
    with gzip.open(options.output / "profiles-trials.jsonl.gz", "wb") as file:
        file.writelines(encode(trial) + b"\n" for trial in trials)


if __name__ == "__main__":
    main()
