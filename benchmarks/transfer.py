"""How well do transferability scores choose among models? Weighted tau and top-1 regret on published results.

python benchmarks/transfer.py CSV

The table has scores and accuracies of 19 ImageNet models on 9 targets, fine-tuned and with frozen features. It comes
with google-research's stable_transfer (Apache-2.0): stable_transfer/transferability/results_analysis/
source_model_architectures_table.csv in https://github.com/google-research/google-research.

Two static orders stand beside the scores. `upstream`: published ImageNet accuracy, known for a new data set as well.
`other targets`: mean rank of a model's accuracy on the eight other targets. Only someone who has fine-tuned all models
on eight targets before has it.
"""

import argparse
import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, say, write
from numpy.typing import NDArray

from stoker.ranking.agreement import ranks, top1_regret, weighted_tau

SOURCE = "https://github.com/google-research/google-research/tree/master/stable_transfer"
UPSTREAM = {
    "xception": 79.0,
    "vgg16": 71.3,
    "vgg19": 71.3,
    "resnet50": 74.9,
    "resnet50v2": 76.0,
    "resnet101": 76.4,
    "resnet101v2": 77.2,
    "resnet152v2": 78.0,
    "mobilenet": 70.4,
    "mobilenetv2": 71.3,
    "mobilenetv3": 75.6,
    "densenet121": 75.0,
    "densenet169": 76.2,
    "densenet201": 77.3,
    "nasnetmobile": 74.4,
    "efficientnetb0": 77.1,
    "efficientnetb1": 79.1,
    "efficientnetb2": 80.1,
    "efficientnetb3": 81.6,
}
"""Top-1 accuracy on ImageNet in per cent, from the table of keras.io/api/applications; for MobileNetV3 (large) from the
documentation of its Keras module. The authors of the results took their weights from Keras."""
COMBINATIONS = {
    "nleep + logme": ("nleep", "logme"),
    "upstream + nleep": ("upstream", "nleep"),
    "upstream + nleep + logme": ("upstream", "nleep", "logme"),
    "other targets + nleep": ("other targets", "nleep"),
    "other targets + nleep + logme": ("other targets", "nleep", "logme"),
}
DRAWS, SEED = 10_000, 0
Floats = NDArray[np.float64]


class Table:
    """Accuracies in per cent and scores, arrays over models in one order, by target."""

    def __init__(self, rows: Sequence[Mapping[str, str]]) -> None:
        self.models = sorted({row["Source Architecture"] for row in rows})
        self.targets = sorted({row["Target Dataset"] for row in rows})
        self.accuracies = {target: np.full(len(self.models), np.nan) for target in self.targets}
        self.scores: dict[str, dict[str, Floats]] = {}
        for row in rows:
            place, target = self.models.index(row["Source Architecture"]), row["Target Dataset"]
            empty = {each: np.full(len(self.models), np.nan) for each in self.targets}
            by_target = self.scores.setdefault(row["Transferability Metric"], empty)
            by_target[target][place] = float(row["Transferability Metric Score"])
            self.accuracies[target][place] = 100 * float(row["Test Accuracy"])

    def order(self, name: str, target: str) -> Floats:
        """What `name` says of each model on a target; higher is better."""
        if name == "upstream":
            return np.array([UPSTREAM[model] for model in self.models])
        if name == "other targets":
            rows = [ranks(self.accuracies[each]) for each in self.targets if each != target]
            return np.asarray(-np.mean(rows, axis=0))
        if name in COMBINATIONS:
            return np.asarray(-np.mean([ranks(self.order(each, target)) for each in COMBINATIONS[name]], axis=0))
        return self.scores[name][target]


def main() -> None:
    parser = arguments(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("csv", type=Path, nargs="?", help="the published table")
    options = parser.parse_args()
    if options.csv is None:
        parser.error(f"the table of scores is not part of Stoker; get it from {SOURCE} and give its path")
    if not options.csv.is_file():
        parser.error(f"there is no file {options.csv}; the table is in {SOURCE}")
    with options.csv.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    rows = [row for trained in ("True", "False") for row in summarised(lines, trained)]
    for row in rows:
        say(line(row))
    write(options.output, "transfer", rows)


def summarised(lines: Sequence[Mapping[str, str]], trained: str) -> list[dict[str, Any]]:
    table = Table([row for row in lines if row["Trainable Backbone"] == trained])
    names = [*sorted(table.scores), "upstream", "other targets", *COMBINATIONS]
    found = []
    for name in names:
        tau, regret = (by_target(table, name, measure) for measure in (weighted_tau, top1_regret))
        row: dict[str, Any] = {"accuracy": "fine-tuned" if trained == "True" else "frozen features", "order": name}
        row["tau"] = {"mean": float(np.mean(tau)), "interval": interval(tau), "by_target": tau}
        row["regret"] = {"mean": float(np.mean(regret)), "interval": interval(regret), "by_target": regret}
        row["regret"]["ties"] = [by_target(table, name, measure) for measure in (lucky_regret, unlucky_regret)]
        found.append({**row, "models": len(table.models), "targets": table.targets})
    return found


def by_target(table: Table, name: str, measure: Callable[[Floats, Floats], float]) -> list[float]:
    return [measure(table.order(name, target), table.accuracies[target]) for target in table.targets]


def lucky_regret(order: Floats, accuracies: Floats) -> float:
    """Regret when the best of models with equal highest order is taken; `top1_regret` takes their mean."""
    return float(accuracies.max() - accuracies[order == order.max()].max())


def unlucky_regret(order: Floats, accuracies: Floats) -> float:
    return float(accuracies.max() - accuracies[order == order.max()].min())


def interval(values: Sequence[float]) -> list[float]:
    """90 % interval of the mean over resampled targets."""
    random = np.random.default_rng(SEED)
    means = np.asarray(values)[random.integers(len(values), size=(DRAWS, len(values)))].mean(axis=1)
    return [float(each) for each in np.quantile(means, (0.05, 0.95))]


def line(row: dict[str, Any]) -> str:
    tau, regret = row["tau"], row["regret"]
    lucky, unlucky = (float(np.mean(each)) for each in regret["ties"])
    ties = f"  ties broken luckily {lucky:.2f}, unluckily {unlucky:.2f}" if unlucky - lucky > 5e-3 else ""
    return (
        f"{row['accuracy']:16s} {row['order']:30s} tau {tau['mean']:6.3f} "
        f"({tau['interval'][0]:6.3f} – {tau['interval'][1]:6.3f})   regret {regret['mean']:5.2f} points "
        f"({regret['interval'][0]:5.2f} – {regret['interval'][1]:5.2f}){ties}"
    )


if __name__ == "__main__":
    main()
