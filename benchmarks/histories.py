"""Records what the CUDA allocator was asked for in the first steps of a workload, each in a fresh process.

The histories are the ground that the model of the allocator and the log on a fake device are held against
(`benchmarks/history_diff.py`). Needs a GPU.

python benchmarks/histories.py FOLDER [--only vit_b_16]
"""

import gzip
import json
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from common import arguments, say

import stoker
from stoker.events import OnEvent
from stoker.measure.session import trial_server
from stoker.measure.steps import make_step
from stoker.process import child
from stoker.workload import calls
from stoker.workload.optimizers import OPTIMIZERS

GIB = 2**30
Case = dict[str, Any]
STEPS = 3


def case(name: str, batch_size: int, mode: str = "train", precision: str = "fp32", **more: Any) -> Case:
    optimizer = more.pop("optimizer", "momentum" if mode == "train" else None)
    return {
        "name": name,
        "batch_size": batch_size,
        "mode": mode,
        "precision": precision,
        "optimizer": optimizer,
        "cap_bytes": None,
        **more,
    }


CASES: list[Case] = [
    case("vit_b_16", 64),
    case("vit_b_16", 64, precision="bf16", optimizer="adamw"),
    case("vit_b_16", 64, "infer"),
    case("densenet201", 32),
    case("resnet18", 128),
    case("resnet18", 128, "infer"),
    case("resnet50", 64),
    case("resnet50", 64, precision="bf16"),
    case("resnet50", 64, precision="fp16", optimizer="adamw"),
    case("resnet50", 64, channels_last=True),
    case("resnet50", 64, "infer", "bf16"),
    case("alexnet", 256),
    case("convnext_tiny", 64),
    case("swin_t", 32),
    case("efficientnet_v2_s", 64),
    case("efficientnet_v2_s", 64, "infer"),
    case("mobilenet_v2", 64),
    case("r3d_18", 16),
    case("vgg16", 64),
    case("hf/bert-base-uncased", 32),
    case("hf/bert-base-uncased", 32, precision="bf16", optimizer="adamw"),
    case("hf/bert-base-uncased", 32, "infer"),
    case("benchmarks/recurrent.py:lstm", 64),
    case("benchmarks/recurrent.py:lstm", 64, "infer"),
    case("benchmarks/recurrent.py:encoder", 64, "infer"),
    case("resnet18", 740, cap_bytes=16 * GIB),
    case("alexnet", 3100, cap_bytes=16 * GIB),
    case("vit_b_16", 120, cap_bytes=16 * GIB),
    case("densenet201", 80, cap_bytes=16 * GIB),
    case("resnet18", 780, "infer", cap_bytes=8 * GIB),
    case("alexnet", 14928, cap_bytes=80 * GIB),
    case("timm/regnety_016", 182),
    case("timm/regnety_016", 219, cap_bytes=16 * GIB),
    case("r3d_18", 56),
    case("r3d_18", 92, cap_bytes=16 * GIB),
    case("vit_l_32", 163, cap_bytes=16 * GIB),
]


def record(chosen: Case, emit: OnEvent) -> dict[str, Any]:
    """The history of a few steps from the making of the model on."""
    device = torch.device("cuda", 0)
    name, mode = chosen["name"], chosen["mode"]
    workload = stoker.load(name, data=None if ":" in name else "device", mode=mode)
    if chosen["optimizer"]:
        workload = workload.with_(optimizer=OPTIMIZERS[chosen["optimizer"]])
    setting = stoker.Setting(precision=chosen["precision"], channels_last=chosen.get("channels_last", False))
    batch = worst_batch(workload, chosen["batch_size"])
    torch.cuda.init()
    if chosen["cap_bytes"]:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(chosen["cap_bytes"] / total)
    torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks="python", max_entries=2_000_000)
    step = make_step(workload, mode, setting, device, pinned=False)
    step.on_device = False  # type: ignore[union-attr]
    marks = {"model": 0}
    for number in range(1, STEPS + 1):
        marks[f"step{number}"] = len(traces())
        step(batch, lambda name: None)
    torch.cuda.synchronize()
    marks["end"] = len(traces())
    found = torch.cuda.memory_stats()
    return {
        **chosen,
        "steps": STEPS,
        "torch": str(torch.__version__),
        "marks": marks,
        "stats": {
            "allocated_peak": found["allocated_bytes.all.peak"],
            "reserved_peak": found["reserved_bytes.all.peak"],
            "allocated_end": found["allocated_bytes.all.current"],
            "reserved_end": found["reserved_bytes.all.current"],
            "retries": found["num_alloc_retries"],
        },
        "events": [written(entry) for entry in traces()],
    }


def traces() -> list[Any]:
    return list(torch.cuda.memory._snapshot()["device_traces"][0])


def written(entry: Any) -> list[Any]:
    return [str(entry["action"]), int(entry.get("addr", 0)), int(entry.get("size", 0)), place(entry)]


def place(entry: Any) -> str:
    """The innermost calls in Python, where there are any: the engine's own thread has none."""
    frames = entry.get("frames") or []
    return " < ".join(frame["name"] for frame in frames[:3])


def worst_batch(workload: stoker.Workload, batch_size: int) -> Any:
    dataset = calls.make_dataset(workload)
    collate = workload.collate_fn or torch.utils.data.default_collate
    return collate([dataset[0]] * batch_size)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="only cases with this in their name")
    parser.add_argument("--first", type=int, default=0, help="only cases from this number on")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for number, chosen in enumerate(CASES):
        if options.only not in chosen["name"] or number < options.first:
            continue
        began = perf_counter()
        ended = child.run(record, (chosen,), server=trial_server(), kind=dict, timeout_s=60)
        words = f"{chosen['name']} {chosen['batch_size']} {chosen['mode']} {chosen['precision']}"
        if ended.result is None:
            why = ended.failure.sentence if ended.failure else ended.output
            say(f"{words}: {ended.how} {why[-200:]}")
            continue
        ended.result["cudnn"] = torch.backends.cudnn.version()
        short = chosen["name"].rpartition("/")[2].replace(":", "-")
        path = options.folder / f"{number:02d}-{short}-{chosen['mode']}-{chosen['precision']}.json.gz"
        path.write_bytes(gzip.compress(json.dumps(ended.result).encode()))
        stats = ended.result["stats"]
        say(
            f"{words}: {len(ended.result['events'])} events, allocated {stats['allocated_peak'] / GIB:.3f} GiB, "
            f"reserved {stats['reserved_peak'] / GIB:.3f} GiB, {perf_counter() - began:.1f} s"
        )


if __name__ == "__main__":
    main()
