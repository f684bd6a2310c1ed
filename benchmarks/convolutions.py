"""What single convolutions of many shapes take on a GPU, and what a trace says of them: the peak of a forward pass, and
of a whole step.

python benchmarks/convolutions.py --record    on a GPU, all in one process
python benchmarks/convolutions.py             anywhere: what was recorded beside what is told
"""

import gc
import json
import random
from functools import partial
from typing import Any

import torch
from common import RESULTS, arguments, say, write
from torch import nn
from torch.utils.data import Dataset

import stoker
from stoker.events import OnEvent
from stoker.measure.session import trial_server
from stoker.measure.steps import make_step
from stoker.memory.replay import replay
from stoker.memory.trace import follow
from stoker.process import child
from stoker.records import Setting
from stoker.workload.example import worst_example

CONVOLUTIONS = {
    "1d": nn.Conv1d,
    "2d": nn.Conv2d,
    "3d": nn.Conv3d,
    "transposed": nn.ConvTranspose2d,
}
MODES = ("infer", "train")
_UNLIMITED = 2**60
_INPUT_BYTES = 48 * 2**20
_OFF = 0.01
_SMALL = 65536
Shape = dict[str, Any]


class Shifted(nn.Module):
    """A convolution of something that has a gradient itself."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(shape["inputs"], *[1] * len(sides(shape))))
        make: Any = CONVOLUTIONS[shape["kind"]]
        more = {"stride": shape["stride"], "groups": shape["groups"]}
        padding = (shape["kernel"] - shape["stride"]) // 2 if shape["kind"] == "transposed" else shape["kernel"] // 2
        self.convolution = make(shape["inputs"], shape["outputs"], shape["kernel"], padding=max(0, padding), **more)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.convolution(x + self.shift)
        return result


class Noise(Dataset[Any]):
    def __init__(self, shape: Shape) -> None:
        self.item = torch.randn(shape["inputs"], *sides(shape))

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Any:
        return self.item, 0


def sides(shape: Shape) -> list[int]:
    return [shape["side"]] * {"1d": 1, "3d": 3}.get(shape["kind"], 2)


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def workload(shape: Shape) -> stoker.Workload:
    sgd = partial(torch.optim.SGD, lr=0.01)
    return stoker.Workload(model=partial(Shifted, shape), dataset=partial(Noise, shape), loss=_loss, optimizer=sgd)


def shapes() -> list[Shape]:
    """Drawn once and for all; few channels, as at the ends of nets, as often as many."""
    draw = random.Random(1)
    found = []
    for kind, count in (("2d", 130), ("transposed", 40), ("1d", 20), ("3d", 20), ("grouped", 20)):
        for _ in range(count):
            inputs, outputs = (draw.choice((1, 3, 4, 6, 8, 16, 32, 64, 128, 256)) for _ in range(2))
            shape: Shape = {
                "kind": "2d" if kind == "grouped" else kind,
                "inputs": inputs,
                "outputs": outputs,
                "kernel": draw.choice((2, 4, 4, 3)) if kind == "transposed" else draw.choice((1, 3, 3, 3, 5, 7)),
                "stride": 2 if kind == "transposed" else draw.choice((1, 1, 2)),
                "side": draw.choice({"1d": (1000, 4096), "3d": (16, 28)}.get(kind, (14, 28, 32, 56, 64, 112, 192))),
                "groups": 1,
                "precision": draw.choice(("fp32", "fp32", "bf16")),
            }
            if kind == "grouped":
                shape |= {"inputs": 64, "outputs": 64, "groups": draw.choice((2, 8, 64))}
            widest = max(shape["inputs"], shape["outputs"] * (4 if kind == "transposed" else 1))
            each = 4 * widest * shape["side"] ** len(sides(shape))
            found.append({**shape, "batch": max(2, min(2048, _INPUT_BYTES // each))})
    return found


# ---------------------------------------------------------------- on a GPU


def recorded(shape: Shape, mode: Any) -> dict[str, Any]:
    """The peak of two steps, in this process, and what the second of them took and gave back, in order."""
    device = torch.device("cuda", 0)
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    job = workload(shape)
    example = worst_example(job)
    step: Any = make_step(job, mode, Setting(precision=shape["precision"]), device, pinned=False)
    for _ in range(2):
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.memory._record_memory_history(context=None, max_entries=1000, clear_history=True)
        step(example.sized(shape["batch"], device), lambda name: None)
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    signs = {"alloc": 1, "free_requested": -1}
    sizes = [signs[each["action"]] * each["size"] for each in events if each["action"] in signs]
    return {"peak": torch.cuda.max_memory_allocated() - before, "events": [x for x in sizes if abs(x) >= _SMALL]}


def told(shape: Shape, mode: Any) -> int:
    """In a process of its own: to follow a step changes torch for good."""
    return child.value(child.run(_told, (shape, mode), server=trial_server(), kind=int, timeout_s=60))


def _told(shape: Shape, mode: Any, emit: OnEvent) -> int:
    log = follow.record(workload(shape), mode, Setting(precision=shape["precision"]), gpu="h200")
    return replay(log, shape["batch"], _UNLIMITED).allocated_peak_bytes


def words(shape: Shape) -> str:
    grouped = f" in {shape['groups']} groups" if shape["groups"] > 1 else ""
    size = f"{shape['kernel']} by {shape['stride']}, side {shape['side']}, batch {shape['batch']}"
    return f"{shape['kind']} {shape['inputs']} to {shape['outputs']}{grouped}, {size}, {shape['precision']}"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--record", action="store_true", help="run them, on a GPU")
    options = parser.parse_args()
    if options.record:
        rows = [{**shape, **{mode: recorded(shape, mode) for mode in MODES}} for shape in shapes()]
        write(options.output, "convolutions", rows)
        say(f"{len(rows)} shapes recorded")
        return
    rows = json.loads((RESULTS / "h200" / "convolutions.json").read_text(encoding="utf-8"))["rows"]
    found = []
    for mode in MODES:
        for row in rows:
            guess, seen = told(row, mode), row[mode]["peak"]
            found.append({"shape": words(row), "mode": mode, "told": guess, "seen": seen})
            if abs(guess / seen - 1) > _OFF:
                unit = 4 * row["batch"] * row["side"] ** len(sides(row))  # a channel of the input
                wide = f"{seen / unit:.2f} channels of it, told {guess / unit:.2f}"
                say(f"{mode:5s} {guess / seen - 1:+6.1%}  {words(row)}: {wide}")
    write(options.output, "convolutions-told", found)
    close = sum(abs(each["told"] / each["seen"] - 1) <= _OFF for each in found)
    say(f"{close} of {len(found)} within {_OFF:.0%}")


if __name__ == "__main__":
    main()
