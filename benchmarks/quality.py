"""Do the scores choose well among snapshots that we know all about? Fourteen small networks, five targets.

python benchmarks/quality.py [--seeds 3]

Each snapshot is trained here on one task (scikit-learn's digits, drawn shapes, gratings; two are untrained, one saw
random labels), so that nothing is downloaded. The truth is its accuracy after fine-tuning all weights on 200 items of a
target, a mean over seeds. The scores see the same 200 items before that. Sources and targets have different digits.
Static orders: accuracy on the snapshot's own task, and parameters.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from common import arguments, say, write
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

from stoker.ranking.agreement import top1_regret, weighted_tau
from stoker.ranking.combine import COMBINED, ModelScores, rank
from stoker.ranking.resampling import ResampleRules, score_model
from stoker.ranking.scores import SCORES
from stoker.ranking.static import StaticFigure
from stoker.records import RankedModels

SIDE, SOURCE_ITEMS, TARGET_ITEMS, TEST_ITEMS = 16, 1500, 200, 600
PRETRAINING_EPOCHS, TUNING_EPOCHS, BATCH, LEARNING_RATE = 15, 40, 32, 2e-3
DRAWS = 1000
Array = NDArray[Any]
Labelled = tuple[Array, Array]


# ---------------------------------------------------------------- data


def digits(random: np.random.Generator, count: int, *, source: bool) -> Labelled:
    """Handwritten digits at twice their size. Sources and targets draw from different halves."""
    images, labels = load_digits(return_X_y=True)
    half = np.arange(len(labels)) % 2 == (0 if source else 1)
    chosen = random.choice(np.flatnonzero(half), min(count, int(half.sum())), replace=False)
    return np.kron(images[chosen].reshape(-1, 8, 8) / 16, np.ones((2, 2))), labels[chosen]


def shapes(random: np.random.Generator, count: int, *, noise: float = 0.2) -> Labelled:
    """Square, disc, cross, frame or ring, anywhere, of any size, light or dark."""
    labels = random.integers(5, size=count)
    across, down = np.meshgrid(np.arange(SIDE), np.arange(SIDE))
    images = np.empty((count, SIDE, SIDE))
    for item, label in enumerate(labels):
        (x, y), size = random.uniform(5, 11, 2), random.uniform(2.5, 4.5)
        dx, dy, far = np.abs(across - x), np.abs(down - y), np.hypot(across - x, down - y)
        square, disc = np.maximum(dx, dy) < size, far < size
        drawn = (
            square,
            disc,
            square & (np.minimum(dx, dy) < 1.2),
            square & (np.maximum(dx, dy) > size - 1.5),
            disc & (far > size - 1.5),
        )[label]
        images[item] = drawn * random.choice([-1, 1]) * random.uniform(0.5, 1)
    return images + noise * random.standard_normal(images.shape), labels


def gratings(random: np.random.Generator, count: int, *, by: str, classes: int, noise: float = 0.5) -> Labelled:
    """Waves of some direction and frequency; the label is one of the two, in steps."""
    labels = random.integers(classes, size=count)
    share = (labels + random.uniform(0.2, 0.8, count)) / classes
    angle = np.pi * (share if by == "direction" else random.random(count))
    frequency = 0.5 + 1.5 * (share if by == "frequency" else random.random(count))
    across, down = np.meshgrid(np.arange(SIDE), np.arange(SIDE))
    along = np.cos(angle)[:, None, None] * across + np.sin(angle)[:, None, None] * down
    images = np.sin(frequency[:, None, None] * along + random.uniform(0, 2 * np.pi, count)[:, None, None])
    return images + noise * random.standard_normal(images.shape), labels


def turned(labelled: Labelled, random: np.random.Generator) -> Labelled:
    """The label is how often the image was turned by 90 degrees."""
    turns = random.integers(4, size=len(labelled[0]))
    return np.stack([np.rot90(image, turn) for image, turn in zip(labelled[0], turns, strict=True)]), turns


class Snapshot(NamedTuple):
    """`data` gives the task that the network of this width was trained on; None leaves it untrained."""

    name: str
    width: int
    data: Callable[[np.random.Generator], Labelled] | None


def relabelled(change: Callable[[Array], Array]) -> Callable[[np.random.Generator], Labelled]:
    def data(random: np.random.Generator) -> Labelled:
        images, labels = digits(random, SOURCE_ITEMS, source=True)
        return images, change(labels)

    return data


SNAPSHOTS = (
    *(Snapshot(f"digits, width {width}", width, relabelled(lambda y: y)) for width in (8, 16, 32)),
    Snapshot("digits, even or odd", 16, relabelled(lambda y: y % 2)),
    Snapshot("digits, below 5", 16, relabelled(lambda y: (y < 5).astype(int))),
    Snapshot("digits, random labels", 16, relabelled(lambda y: np.random.default_rng(0).integers(10, size=len(y)))),
    Snapshot("digits, turned", 16, lambda random: turned(digits(random, SOURCE_ITEMS, source=True), random)),
    *(Snapshot(f"shapes, width {width}", width, lambda random: shapes(random, SOURCE_ITEMS)) for width in (16, 32)),
    Snapshot("shapes, turned", 16, lambda random: turned(shapes(random, SOURCE_ITEMS), random)),
    Snapshot("gratings, direction", 16, lambda random: gratings(random, SOURCE_ITEMS, by="direction", classes=8)),
    Snapshot("gratings, frequency", 16, lambda random: gratings(random, SOURCE_ITEMS, by="frequency", classes=6)),
    *(Snapshot(f"untrained, width {width}", width, None) for width in (16, 32)),
)
TARGETS: dict[str, Callable[[np.random.Generator, int], Labelled]] = {
    "digits": lambda random, count: digits(random, count, source=False),
    "noisy digits": lambda random, count: noisy(digits(random, count, source=False), random),
    "noisy shapes": lambda random, count: shapes(random, count, noise=0.35),
    "direction": lambda random, count: gratings(random, count, by="direction", classes=12, noise=0.8),
    "frequency": lambda random, count: gratings(random, count, by="frequency", classes=5, noise=0.8),
}


def noisy(labelled: Labelled, random: np.random.Generator) -> Labelled:
    return labelled[0] + 0.5 * random.standard_normal(labelled[0].shape), labelled[1]


# ---------------------------------------------------------------- networks


class Network(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for into, out in ((1, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(into, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(4 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.body(images)))


def tensors(labelled: Labelled) -> tuple[Tensor, Tensor]:
    images = torch.from_numpy(np.ascontiguousarray(labelled[0], dtype=np.float32))[:, None]
    return images, torch.from_numpy(labelled[1].astype(np.int64))


def train(network: nn.Module, labelled: Labelled, epochs: int, seed: int) -> None:
    images, labels = tensors(labelled)
    random = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    for _ in range(epochs):
        for rows in torch.randperm(len(labels), generator=random).split(BATCH):
            loss = nn.functional.cross_entropy(network(images[rows]), labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


@torch.no_grad()
def accuracy(network: nn.Module, labelled: Labelled) -> float:
    images, labels = tensors(labelled)
    return float(100 * (network(images).argmax(dim=1) == labels).float().mean())


def pretrained(snapshot: Snapshot, number: int) -> tuple[Network, StaticFigure]:
    torch.manual_seed(number)
    data = snapshot.data(np.random.default_rng(1000 + number)) if snapshot.data else None
    network = Network(snapshot.width, int(data[1].max()) + 1 if data else 10)
    own = 0.0
    if data:
        cut = int(0.8 * len(data[1]))
        train(network, (data[0][:cut], data[1][:cut]), PRETRAINING_EPOCHS, number)
        own = accuracy(network, (data[0][cut:], data[1][cut:]))
    return network, StaticFigure(
        accuracy=own, dataset="own task", parameters=sum(p.numel() for p in network.parameters())
    )


def tuned(network: Network, trained: Labelled, tested: Labelled, seeds: int) -> list[float]:
    """Accuracy of copies with a new head, all weights trained."""
    found = []
    for seed in range(seeds):
        copied = copy.deepcopy(network)
        torch.manual_seed(seed)
        copied.head = nn.Linear(copied.head.in_features, int(trained[1].max()) + 1)
        train(copied, trained, TUNING_EPOCHS, seed)
        found.append(accuracy(copied, tested))
    return found


@torch.no_grad()
def scored(name: str, network: Network, static: StaticFigure, trained: Labelled) -> ModelScores:
    features = network.body(tensors(trained)[0])
    shares = network.head(features).softmax(dim=1).numpy()
    given: dict[str, Any] = {"features": features.numpy(), "source_probabilities": shares}
    given["source_labels"] = shares.argmax(axis=1)
    resampled = score_model(trained[1], scores=COMBINED, **given)
    once = [each for each in SCORES if each not in COMBINED]
    others = score_model(trained[1], scores=once, rules=ResampleRules(resamples=0), **given)
    return ModelScores(model=name, scores=(*resampled, *others), static=static)


# ---------------------------------------------------------------- the comparison


def orders(models: Sequence[ModelScores]) -> dict[str, list[float]]:
    """What each score and each static order says; higher is better."""
    found = {name: [each.sample(name).value for each in models] for name in SCORES}
    found["own accuracy"] = [each.static.accuracy or 0.0 for each in models]
    found["parameters"] = [float(each.static.parameters or 0) for each in models]
    found["nleep + logme"] = places(models, rank(models, use_static=False))
    found["own accuracy + nleep + logme"] = places(models, rank(models))
    return found


def places(models: Sequence[ModelScores], ranking: RankedModels) -> list[float]:
    mean = {each.model: each.mean_rank for each in ranking.models}
    return [-mean[each.model] for each in models]


def compared(target: str, number: int, networks: Sequence[tuple[Network, StaticFigure]], seeds: int) -> dict[str, Any]:
    random = np.random.default_rng(2000 + number)
    images, labels = TARGETS[target](random, TARGET_ITEMS + TEST_ITEMS)
    trained, tested = (images[:TARGET_ITEMS], labels[:TARGET_ITEMS]), (images[TARGET_ITEMS:], labels[TARGET_ITEMS:])
    models = [scored(s.name, *each, trained) for s, each in zip(SNAPSHOTS, networks, strict=True)]
    accuracies = [tuned(network, trained, tested, seeds) for network, _ in networks]
    ranking = rank(models, use_static=False)
    truth = dict(zip((each.name for each in SNAPSHOTS), np.mean(accuracies, axis=1), strict=True))
    first = [each.model for each in ranking.models if each.place == 1]
    best = max(truth.values())
    say(f"{target}: best {best:.1f}; first {', '.join(f'{name} ({truth[name]:.1f})' for name in first)}")
    return {
        "target": target,
        "items": len(trained[1]),
        "accuracies": dict(zip((each.name for each in SNAPSHOTS), accuracies, strict=True)),
        "orders": orders(models),
        "first": first,
        "first_regret": best - float(np.mean([truth[name] for name in first])),
        "resamples": ranking.resamples,
    }


def summarised(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean tau and regret over targets, with 90 % intervals over resampled targets and fine-tuning seeds."""
    random = np.random.default_rng(0)
    found = []
    for name in rows[0]["orders"]:
        tau, regret = np.mean([measured(row, name, None) for row in rows], axis=0)
        draws = []
        for _ in range(DRAWS):
            chosen = random.integers(len(rows), size=len(rows))
            draws.append(np.mean([measured(rows[each], name, random) for each in chosen], axis=0))
        low, high = np.quantile(draws, (0.05, 0.95), axis=0)
        line = {"order": name, "tau": float(tau), "tau_interval": [float(low[0]), float(high[0])]}
        found.append({**line, "regret": float(regret), "regret_interval": [float(low[1]), float(high[1])]})
    return found


def measured(row: dict[str, Any], name: str, random: np.random.Generator | None) -> tuple[float, float]:
    runs = np.array(list(row["accuracies"].values()))
    seeds = np.arange(runs.shape[1]) if random is None else random.integers(runs.shape[1], size=runs.shape[1])
    truth, order = runs[:, seeds].mean(axis=1), np.array(row["orders"][name])
    return weighted_tau(order, truth), top1_regret(order, truth)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="fine-tuning runs of each snapshot on each target")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the networks are small: a second thread waits more than it computes
    networks = [pretrained(snapshot, number) for number, snapshot in enumerate(SNAPSHOTS)]
    for snapshot, (_, static) in zip(SNAPSHOTS, networks, strict=True):
        say(f"{snapshot.name:22s} {static.parameters:7,d} parameters, own task {static.accuracy:5.1f} %")
    rows = [compared(target, number, networks, options.seeds) for number, target in enumerate(TARGETS)]
    summary = summarised(rows)
    for each in sorted(summary, key=lambda row: -float(row["tau"])):
        (a, b), (c, d) = each["tau_interval"], each["regret_interval"]
        tau, regret = f"tau {each['tau']:6.3f} ({a:.3f} – {b:.3f})", f"regret {each['regret']:5.2f} ({c:.2f} – {d:.2f})"
        say(f"{each['order']:30s} {tau}  {regret}")
    write(options.output, "quality", {"targets": rows, "summary": summary})


if __name__ == "__main__":
    main()
