"""The largest batch under losses that keep more memory than their shapes tell: traced, then searched.

python benchmarks/losses.py [--gib 4]    on a GPU
python benchmarks/losses.py --told       anywhere: what a trace says now

The model is small and gives an image for an image, so that what a loss keeps decides the peak. `auto` begins with the
trace, says what that predicted, and ends with a size that ran and one at most 1 % above that did not. `search`, which
knows nothing of the trace, is asked about two of them as well: it takes several times as long.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from common import arguments, say, write
from limit import GIB, brief
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import stoker

_SIDE = 192


class Pairs(Dataset[Any]):
    """An image, and one of the same size with values between 0 and 1 to come near to."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        return tuple(torch.rand(3, _SIDE, _SIDE, generator=generator) for _ in range(2))


def _model(last: Callable[[], nn.Module] = nn.Identity) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 3, padding=1), last())


def _divergence(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.kl_div(functional.log_softmax(output, dim=1), target, reduction="batchmean")


LOSSES: dict[str, tuple[Any, Callable[[], nn.Module]]] = {
    "mse": (nn.MSELoss(), nn.Identity),
    "l1": (nn.L1Loss(), nn.Identity),
    "smooth l1": (nn.SmoothL1Loss(), nn.Identity),
    "huber": (nn.HuberLoss(), nn.Identity),
    "bce": (nn.BCELoss(), nn.Sigmoid),
    "bce of logits": (nn.BCEWithLogitsLoss(), nn.Identity),
    "soft margin": (nn.SoftMarginLoss(), nn.Identity),
    "kl divergence": (_divergence, nn.Identity),
}
SEARCHED = ("mse", "bce")


def workload(name: str) -> stoker.Workload:
    loss, last = LOSSES[name]
    sgd = partial(torch.optim.SGD, lr=0.01)
    return stoker.Workload(model=partial(_model, last), dataset=Pairs, loss=loss, optimizer=sgd, name=name)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--told", action="store_true", help="only what a trace says")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.told:
        for name in LOSSES:
            found = stoker.limit(
                workload(name), method="trace", mode="train", gpu_memory=int(options.gib * GIB), gpu="h200"
            )
            rows.append({"loss": name, "max_batch": found.max_batch, "interval": found.interval})
        write(options.output, "limit-losses-told", rows)
        return
    for name in LOSSES:
        asked: dict[str, Any] = {"mode": "train", "gpu_memory": int(options.gib * GIB), "device": "cuda"}
        row: dict[str, Any] = {"loss": name, "gib": options.gib, "torch": str(torch.__version__)}
        for method in ("auto", "search") if name in SEARCHED else ("auto",):
            row[method] = brief(stoker.limit(workload(name), method=method, **asked))
        rows.append(row)
        auto, searched = row["auto"], row.get("search", {}).get("max_batch", "")
        told, edge = auto["predicted_batch"], auto["max_batch"]
        error = f"{told / edge - 1:+.1%}" if told else "-"
        say(f"{name:15s} traced {told} {error}  auto {edge} in {auto['seconds']:.1f} s  {searched}")
        write(options.output, "limit-losses", rows)


if __name__ == "__main__":
    main()
