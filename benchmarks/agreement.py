"""Do our device stages agree with torch.profiler? Both watch the same steps of vit_b_16 on one GPU.

python benchmarks/agreement.py --output benchmarks/results/h200
"""

from typing import Any

import torch
from common import arguments, say, write
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

import stoker
from stoker.events import OnEvent
from stoker.measure.device import CudaClock
from stoker.measure.session import trial_server
from stoker.measure.steps import ModelStep
from stoker.process import child

STAGES = ("copy", "forward", "backward", "update")
Times = dict[str, float]


class Both:
    """Ends a stage on our clock and as a range in torch's trace."""

    def __init__(self, clock: CudaClock, order: list[str]) -> None:
        self._clock, self._order = clock, order
        self.moments = [clock.mark()]
        self._range = self._opened(0)

    def __call__(self, name: str) -> None:
        self.moments.append(self._clock.mark())
        self._range.__exit__(None, None, None)
        if len(self.moments) <= len(self._order):
            self._range = self._opened(len(self.moments) - 1)

    def _opened(self, place: int) -> Any:
        opened: Any = record_function(self._order[place])
        opened.__enter__()
        return opened


def watch(model: str, mode: str, batch_size: int, steps: int, emit: OnEvent) -> dict[str, Times]:
    device = torch.device("cuda", torch.cuda.current_device())
    workload = stoker.load(model, data="tensors", mode=mode, items=batch_size)  # type: ignore[arg-type]
    setting = stoker.Setting(batch_size=batch_size, pin_memory=True)
    step = ModelStep(workload, mode, setting, device, pinned=True)  # type: ignore[arg-type]
    images, labels = torch.randn(batch_size, 3, 224, 224), torch.randint(0, 10, (batch_size,))
    batch = (images.pin_memory(), labels.pin_memory())
    order = list(STAGES if mode == "train" else STAGES[:2])
    for _ in range(5):
        step(batch, lambda name: None)
    clock = CudaClock(device)
    ours: Times = dict.fromkeys(order, 0.0)
    with torch_profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        marked = []
        for _ in range(steps):
            marked.append(both := Both(clock, order))
            step(batch, both)
        torch.cuda.synchronize()
    for both in marked:
        times = [clock.seconds(moment) for moment in both.moments]
        for name, before, after in zip(order, times, times[1:], strict=False):
            ours[name] += after - before
    ours["compute"] = sum(seconds for name, seconds in ours.items() if name != "copy")
    return {"ours": ours, "torch": _in_trace(profiler)}


def _in_trace(profiler: Any) -> Times:
    """As the trace has it: the ranges `copy` and `forward` on the device, and all kernels together as `compute`.

    Backward runs in autograd's own thread, where the trace does not carry our range; its kernels are in the sum.
    """
    found: Times = {"copy": 0.0, "forward": 0.0, "compute": 0.0}
    for event in profiler.events():
        if event.device_type != DeviceType.CUDA:
            continue
        if event.name in ("copy", "forward"):
            found[event.name] += event.device_time_total / 1e6
        elif event.name not in STAGES and not event.name.startswith("Optimizer.") and "HtoD" not in event.name:
            found["compute"] += event.device_time_total / 1e6
    return found


def main() -> None:
    options = arguments(__doc__).parse_args()
    rows = []
    say("model      mode    stage       ours      torch     ratio")
    for model, mode in (("vit_b_16", "infer"), ("vit_b_16", "train"), ("resnet18", "train")):
        found = child.value(child.run(watch, (model, mode, 128, 30), server=trial_server(), kind=dict[str, Times]))
        rows.append({"model": model, "mode": mode, **found})
        for name, other in found["torch"].items():
            seconds = found["ours"][name]
            say(f"{model:10s} {mode:7s} {name:10s} {seconds:7.4f} s {other:7.4f} s   {seconds / other:.4f}")
    write(options.output, "agreement", rows)


if __name__ == "__main__":
    main()
