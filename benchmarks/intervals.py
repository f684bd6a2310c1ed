"""Are intervals over resampled items as wide as they should be? Ours, and those of a bootstrap with replacement.

python benchmarks/intervals.py [--truth 60] [--sets 8]

A made-up world gives any number of independent sets of items. The spread of a score between sets is the truth; each way
of resampling estimates it from one set. 1.0 is right, 2.0 twice too wide. Two candidates are scored on the same items:
what a ranking needs is the spread of their difference.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from common import arguments, quartiles, say, write
from numpy.typing import NDArray

from stoker.ranking.items import number_labels
from stoker.ranking.resampling import RESAMPLING, Subsets
from stoker.ranking.scores import SCORES

CASES = [(10, 400, 128), (10, 400, 512), (10, 2000, 128), (40, 1500, 256)]
"""Classes, items, features: features fewer and more than items, few and many items a class."""
SCORED = ("logme", "nleep", "h_score_regularised", "gbc", "knn")
LATENT = 64
Array = NDArray[Any]


class World:
    """Two networks that see the same latent items, the second with more noise."""

    def __init__(self, classes: int, width: int) -> None:
        random = np.random.default_rng(7)
        self.centres = 0.6 * random.standard_normal((classes, LATENT))
        self.maps = random.standard_normal((2, LATENT, width)) / np.sqrt(LATENT)

    def draw(self, seed: int, items: int) -> tuple[list[Array], Array]:
        random = np.random.default_rng(seed)
        labels = random.permutation(np.arange(items) % len(self.centres))
        latent = self.centres[labels] + random.standard_normal((items, LATENT))
        width = self.maps.shape[2]
        noise = [level * random.standard_normal((items, width)) for level in (0.3, 0.6)]
        return [
            np.maximum(latent @ each + extra, 0).astype(np.float32)
            for each, extra in zip(self.maps, noise, strict=True)
        ], labels


def scored(candidates: list[Array], labels: Array) -> Array:
    """Shape (scores, 3): the two candidates and their difference."""
    values = np.array([[SCORES[name].function(each, labels) for each in candidates] for name in SCORED])
    return np.column_stack([values, values[:, 0] - values[:, 1]])


def ours(labels: Array) -> tuple[Iterator[Array], float]:
    subsets = Subsets(number_labels(labels, "labels"))
    return iter(subsets), subsets.scale


def with_replacement(labels: Array) -> tuple[Iterator[Array], float]:
    random = np.random.default_rng(0)
    return (random.integers(len(labels), size=len(labels)) for _ in range(RESAMPLING.resamples)), 1.0


def estimated(candidates: list[Array], labels: Array, way: Callable[[Array], tuple[Iterator[Array], float]]) -> Array:
    """Spread that one set's resamples show, shape (scores, 3)."""
    draws, scale = way(labels)
    values = np.array([scored([each[rows] for each in candidates], labels[rows]) for rows in draws])
    return np.asarray(scale * values.std(axis=0, ddof=1))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--truth", type=int, default=60, help="independent sets that give the true spread")
    parser.add_argument("--sets", type=int, default=8, help="sets that are resampled")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for classes, items, width in CASES:
        world = World(classes, width)
        sets = [scored(*world.draw(seed, items)) for seed in range(options.truth)]
        truth = np.std(sets, axis=0, ddof=1)
        for name, way in (("subsets", ours), ("with replacement", with_replacement)):
            found = [estimated(*world.draw(10_000 + seed, items), way) / truth for seed in range(options.sets)]
            for place, score in enumerate(SCORED):
                row = {"classes": classes, "items": items, "width": width, "score": score, "way": name}
                ratio = [float(each[place, :2].mean()) for each in found]
                difference = [float(each[place, 2]) for each in found]
                rows.append({**row, "truth": truth[place].tolist(), "ratio": ratio, "difference_ratio": difference})
                say(line(rows[-1]))
    write(options.output, "intervals", rows)


def line(row: dict[str, Any]) -> str:
    one, two = quartiles(row["ratio"]), quartiles(row["difference_ratio"])
    return (
        f"{row['classes']:4d} classes {row['items']:5d} × {row['width']:4d}  {row['score']:20s} {row['way']:17s} "
        f"one score {one[1]:5.2f} ({one[0]:.2f} – {one[2]:.2f})  difference {two[1]:5.2f} ({two[0]:.2f} – {two[2]:.2f})"
    )


if __name__ == "__main__":
    main()
