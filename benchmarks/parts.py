"""Models in blocks: what running a model as blocks costs, and what its last quarter costs on a stored input.

`composed` is the composition of all blocks against the model, `again` the model against itself, which shows the noise.
`last:25%` runs on the stored output of the block before it, against the full model. All run in turns of random order in
one process with one thread. Ratios are of CPU time of that thread, which other processes disturb less than wall time;
the raw rows have both. Beside the median of the rounds and its quartiles, `least` compares the shortest runs. Small
models get more rounds, up to a time.

python benchmarks/parts.py [--rounds 15] [--seconds 40] [--models resnet18,...]

A row is stored as soon as it is measured. With --models, the rows of these replace those that are stored.
"""

import json
import random
from collections.abc import Callable
from functools import partial
from time import perf_counter, thread_time
from typing import Any

import torch
from common import arguments, quartiles, say, write

from stoker.packages import optional
from stoker.workload.blocks import PARTS, compose, cut, describe, parse_part, run, split

PART = "last:25%"
WARMUP_ROUNDS, MOST_ROUNDS = 2, 100
UNITS = ("blocks", "layers", "parameters", "time")
Case = tuple[Callable[[], torch.nn.Module], Callable[[], Any]]


def images(items: int, size: int = 224) -> Any:
    return torch.randn(items, 3, size, size)


def clips(items: int) -> Any:
    return torch.randn(items, 3, 8, 112, 112)


def texts(items: int) -> Any:
    """Of 128 tokens, where half of the items are padded."""
    mask = torch.ones(items, 128, dtype=torch.long)
    mask[::2, 100:] = 0
    return {"input_ids": torch.randint(5, 1000, (items, 128)), "attention_mask": mask}


TORCHVISION = (
    *("resnet18", "resnet50", "resnet152", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"),
    *("efficientnet_b0", "efficientnet_v2_s", "efficientnet_v2_l", "vit_b_16", "vit_l_32", "alexnet", "vgg16"),
    *("densenet121", "convnext_tiny", "swin_t", "swin_v2_t"),
)


def cases() -> dict[str, Case]:
    vision = optional("torchvision.models", extra="dev")
    timm = optional("timm", extra="timm")
    hf = optional("transformers", extra="hf")
    found: dict[str, Case] = {name: (partial(vision.get_model, name), partial(images, 4)) for name in TORCHVISION}
    for name in ("mobilenet_v3_small", "densenet121"):  # many blocks and little work in each: the most overhead
        found[f"{name} on 1 item"] = (partial(vision.get_model, name), partial(images, 1))
    found["r3d_18"] = (vision.video.r3d_18, partial(clips, 2))
    for name in ("vit_small_patch16_224", "convnext_atto", "mobilenetv3_small_100"):
        found[f"timm/{name}"] = (partial(timm.create_model, name), partial(images, 4))
    for name in ("Bert", "Roberta", "DistilBert"):
        config = getattr(hf, f"{name}Config")()
        found[f"hf/{name.lower()}"] = (
            partial(getattr(hf, f"{name}ForSequenceClassification"), config),
            partial(texts, 4),
        )
    return found


def measure(name: str, case: Case, rounds: int, seconds: float) -> dict[str, Any]:
    """Seconds of each way to run a model, in turns: `rounds` of them, or as many as `seconds` give, up to a hundred."""
    torch.manual_seed(0)
    model, inputs = case[0]().eval(), case[1]()
    blocks = split(model, inputs)
    costs = describe(blocks, inputs, runs=3)
    begin = cut(blocks, parse_part(PART))
    stored = run(blocks[:begin], inputs)
    whole, last = compose(blocks), blocks[begin:]
    ways: dict[str, Callable[[], Any]] = {
        "model": lambda: call(model, inputs),
        "again": lambda: call(model, inputs),
        "composed": lambda: call(whole, inputs),
        "part": lambda: run(last, stored),
    }
    for number in range(WARMUP_ROUNDS):
        turn(ways, number)
    rows: list[dict[str, float]] = []
    began = perf_counter()
    while len(rows) < rounds or (perf_counter() - began < seconds and len(rows) < MOST_ROUNDS):
        rows.append(turn(ways, len(rows)))
    return {
        "model": name,
        "items": next(iter(inputs.values())).shape[0] if isinstance(inputs, dict) else inputs.shape[0],
        "blocks": [block.name for block in blocks],
        "parameters": [block.parameters for block in blocks],
        "layers": [block.layers for block in blocks],
        "output_bytes_per_item": [cost.output_bytes_per_item for cost in costs],
        "time_s_per_item": [cost.time_s_per_item for cost in costs],
        "whole_reason": blocks.whole_reason,
        "begins": {unit: cut(blocks, parse_part(f"{PART}:{unit}"), costs) for unit in UNITS},
        "cuts": {part: cut(blocks, parse_part(part)) for part in PARTS},
        "rounds": rows,
    }


def call(function: Any, inputs: Any) -> Any:
    return function(**inputs) if isinstance(inputs, dict) else function(inputs)


def turn(ways: dict[str, Callable[[], Any]], number: int) -> dict[str, float]:
    row: dict[str, float] = {}
    order = list(ways)
    random.Random(number).shuffle(order)
    for name in order:
        began, began_cpu = perf_counter(), thread_time()
        ways[name]()
        row[f"{name}_cpu_s"], row[f"{name}_wall_s"] = thread_time() - began_cpu, perf_counter() - began
    return row


def ratio(row: dict[str, Any], way: str) -> str:
    low, middle, high = quartiles([each[f"{way}_cpu_s"] / each["model_cpu_s"] for each in row["rounds"]])
    return f"{middle:.3f} ({low:.3f}–{high:.3f})"


def least(row: dict[str, Any], way: str) -> str:
    """The shortest run of a way against the shortest of the model."""
    shortest = {name: min(each[f"{name}_cpu_s"] for each in row["rounds"]) for name in (way, "model")}
    return f"{shortest[way] / shortest['model']:.3f}"


def line(*cells: Any) -> str:
    return "  ".join(
        f"{cell!s:{width}}" for cell, width in zip(cells, (27, 6, 19, 5, 19, 43, 19), strict=True)
    ).rstrip()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--models", default="", help="some of the models, separated by commas; all without it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {name: case for name, case in cases().items() if not options.models or name in options.models.split(",")}
    say(line("model", "blocks", "composed", "least", "again", f"{PART} begins with", f"{PART} / full"))
    path = options.output / "parts.json"
    stored = json.loads(path.read_text(encoding="utf-8"))["rows"] if options.models and path.exists() else []
    rows = {row["model"]: row for row in stored}
    with torch.inference_mode():
        for name, case in chosen.items():
            row = rows[name] = measure(name, case, options.rounds, options.seconds)
            write(options.output, "parts", [rows[each] for each in cases() if each in rows])
            begin = row["begins"]["blocks"]
            place = (
                f"{begin} {row['blocks'][begin]}" if row["whole_reason"] is None else f"whole: {row['whole_reason']}"
            )
            composed, again, quarter = (ratio(row, way) for way in ("composed", "again", "part"))
            say(line(name, len(row["blocks"]), composed, least(row, "composed"), again, place, quarter))


if __name__ == "__main__":
    main()
