"""A search over six models against the same models in a plain loop: extract, score, one after another.

python benchmarks/search.py [--rounds 7] [--items 256] [--cold]

Each side is a process of its own, from its start to its answer, on the same folder of JPEGs, the same weights files and
the same scores with the same resamples. The loop is what people write: torch.load, the model's own preprocessing, a
DataLoader with two workers and batches of 32, features from the input of the last layer. The search chooses batch sizes
and workers itself, reads the next weights while it computes, and keeps prepared images. The sides alternate, and the
one that begins does so too. Beside the ratio of the two in each round, `again` compares two runs of the loop. `--cold`
evicts the weights and the images from the page cache before each run.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from common import arguments, quartiles, say, write

from stoker.machine import pagecache

MODELS = ("resnet18", "resnet34", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "shufflenet_v2_x1_0")
SCORES = ("nleep", "logme")
BATCH, WORKERS = 32, 2
SAME = 1e-4
"""Features differ in the last digits between batch sizes."""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--items", type=int, default=256)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--cold", action="store_true", help="files are not in the page cache when a run begins")
    parser.add_argument("--loop", nargs=3, metavar=("WEIGHTS", "DATA", "MODELS"), help="the plain loop, this process")
    options = parser.parse_args()
    if options.loop:
        weights, data, models = options.loop
        say(json.dumps(plain_loop(models.split(","), Path(weights), Path(data))))
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="stoker-") as place:
        folder, models = Path(place), options.models.split(",")
        data = prepared(folder, models, options.items)
        files = [*folder.glob("*.pt"), *data.rglob("*.jpg")]
        for number in range(options.rounds):
            rows.append(round_of(number, folder, data, models, files if options.cold else None))
            say(line(number, rows[-1]))
            check_same(rows[-1])
            write(options.output, "search-cold" if options.cold else "search", rows)
    for name in ("search", "again"):
        low, middle, high = quartiles([row[name]["wall_s"] / row["loop"]["wall_s"] for row in rows])
        say(f"{name} / loop: {middle:.3f} ({low:.3f}–{high:.3f})")


def prepared(folder: Path, models: list[str], items: int) -> Path:
    """A weights file with random weights for each model, and a folder of images by class, as many of each."""
    import torch
    import torchvision

    from stoker.workload.data.synthetic import build_jpegs

    for name in models:
        torch.manual_seed(0)
        torch.save(torchvision.models.get_model(name).state_dict(), folder / f"{name}.pt")
    images = sorted((build_jpegs() / "train").rglob("*.jpg"))
    for place in range(min(items, len(images))):
        image = images[place * len(images) // items]
        target = folder / "data" / image.parent.name
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(image, target)
    return folder / "data"


def round_of(number: int, folder: Path, data: Path, models: list[str], evicted: list[Path] | None) -> dict[str, Any]:
    """One run of each side; the loop runs twice, so that the noise is known."""
    ways = ["search", "loop", "again"] if number % 2 == 0 else ["again", "loop", "search"]
    row: dict[str, Any] = {"models": models, "cold": evicted is not None}
    for way in ways:
        if evicted is None:
            pagecache.warm([*folder.glob("*.pt"), *data.rglob("*.jpg")])
        else:
            pagecache.evict(evicted)
        row[way] = searched(folder, data, models) if way == "search" else looped(folder, data, models)
    return row


def searched(folder: Path, data: Path, models: list[str]) -> dict[str, Any]:
    """The search in a store of its own, as someone runs it for the first time."""
    named = ",".join(f"{name}@{folder / name}.pt" for name in models)
    with tempfile.TemporaryDirectory(prefix="stoker-") as place:
        command = ["-m", "stoker", "search", "--models", named, "--data", str(data)]
        found, wall_s = timed([*command, "--json", "--quiet", "--db", f"{place}/search.db"])
    trials = found["candidates"]
    failed = [each["problem"] for each in trials if each["outcome"] != "done"]
    if failed:
        sys.exit(f"a candidate failed: {failed[0]}")
    return {
        "wall_s": wall_s,
        "candidates": [
            {"model": each["model"], "total_s": each["total_s"], "stages": each["stages"]} for each in trials
        ],
        "items": trials[0]["items"],
        "scores": {each["model"].partition("@")[0]: values_of(each["scores"]) for each in trials},
        "settings": [[each["batch_size"], each["num_workers"], each["items_from"]] for each in trials],
    }


def values_of(scores: list[dict[str, Any]]) -> dict[str, float]:
    return {each["score"]: each["value"] for each in scores}


def looped(folder: Path, data: Path, models: list[str]) -> dict[str, Any]:
    command = [__file__, "--loop", str(folder), str(data), ",".join(models)]
    found, wall_s = timed(command)
    return {"wall_s": wall_s, **found}


def timed(command: list[str]) -> tuple[dict[str, Any], float]:
    began = perf_counter()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    wall_s = perf_counter() - began
    if done.returncode:
        sys.exit(f"{' '.join(command)[:200]} ended with status {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout), wall_s


# ---------------------------------------------------------------- the plain loop


def plain_loop(models: list[str], folder: Path, data: Path) -> dict[str, Any]:
    """Features and scores of each model, one after another."""
    import torch
    import torchvision
    from torch.utils.data import DataLoader

    from stoker.ranking.resampling import score_model

    scores = {}
    for name in models:
        model = torchvision.models.get_model(name)
        model.load_state_dict(torch.load(folder / f"{name}.pt", weights_only=True))
        model.eval()
        transform = torchvision.models.get_model_weights(name).DEFAULT.transforms()
        images = torchvision.datasets.ImageFolder(str(data), transform)
        features: list[torch.Tensor] = []
        labels: list[torch.Tensor] = []
        last = [each for each in model.modules() if isinstance(each, torch.nn.Linear)][-1]
        last.register_forward_pre_hook(lambda _, inputs, into=features: into.append(inputs[0]))
        with torch.inference_mode():
            for batch, target in DataLoader(images, batch_size=BATCH, num_workers=WORKERS):
                model(batch)
                labels.append(target)
        found = score_model(torch.cat(labels).numpy(), features=torch.cat(features).numpy(), scores=SCORES)
        scores[name] = {each.score: each.value for each in found}
    return {"scores": scores}


def check_same(row: dict[str, Any]) -> None:
    """Both sides must have found the same. NLEEP depends on the order of the items, which differs; LogME does not."""
    for model, found in row["loop"]["scores"].items():
        ours = row["search"]["scores"][model]["logme"]
        if abs(ours - found["logme"]) > SAME:
            sys.exit(f"{model} has LogME {ours} in the search and {found['logme']} in the loop")


def line(number: int, row: dict[str, Any]) -> str:
    times = "  ".join(f"{name} {row[name]['wall_s']:.1f} s" for name in ("search", "loop", "again"))
    return f"round {number + 1}: {times}  ratio {row['search']['wall_s'] / row['loop']['wall_s']:.3f}"


if __name__ == "__main__":
    main()
