"""Does a synthetic JPEG cost what a real one costs? Decode and transform of both, turn by turn, in one process.

Run: python benchmarks/decode.py --sample DIR [--repeats 10] [--out FILE]
"""

import argparse
import json
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import PIL
import torch
import torchvision

from stoker.machine import cpu
from stoker.workload.data.folders import EXTENSIONS
from stoker.workload.data.images import decode, transform_for
from stoker.workload.data.open import open_data

MEAN_BYTES, BYTES_TOLERANCE, TIME_TOLERANCE = 117_000, 0.10, 0.15
RESULT = Path(__file__).parent / "results" / "two-cores" / "decode.json"


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)  # as in a DataLoader's worker
    real = [
        path.read_bytes() for path in sorted(arguments.sample.rglob("*")) if path.suffix.lower() in EXTENSIONS["images"]
    ]
    paths = open_data("jpeg", part="train", mode="infer").files()
    synthetic = [path.read_bytes() for path in paths]
    rounds = [run_round(real, window(synthetic, number, len(real))) for number in range(-1, arguments.repeats)][1:]
    result = summarise(rounds, real, synthetic)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    show(result)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Synthetic against real JPEGs: time to decode and transform.")
    parser.add_argument("--sample", type=Path, required=True, help="a folder of real JPEGs")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args()


def window(files: list[bytes], number: int, count: int) -> list[bytes]:
    """Each round takes the next `count` files, so that the rounds' spread holds that of the set as well."""
    return [files[(number * count + place) % len(files)] for place in range(count)]


def run_round(real: list[bytes], synthetic: list[bytes]) -> dict[str, dict[str, float]]:
    """Milliseconds an item; real and synthetic in turn, so that a busy moment falls on both."""
    sums = {"real": [0.0, 0.0], "synthetic": [0.0, 0.0]}
    transform = transform_for("infer", 224)
    for pair in zip(real, synthetic, strict=True):
        for name, data in zip(sums, pair, strict=True):
            for place, seconds in enumerate(time_item(data, transform)):
                sums[name][place] += seconds
    return {
        name: {"decode_ms": 1e3 * both[0] / len(real), "transform_ms": 1e3 * both[1] / len(real)}
        for name, both in sums.items()
    }


def time_item(data: bytes, transform: Callable[[object], object]) -> tuple[float, float]:
    began = perf_counter()
    image = decode(data, "item")
    decoded = perf_counter()
    transform(image)
    return decoded - began, perf_counter() - decoded


def summarise(rounds: list[dict[str, dict[str, float]]], real: list[bytes], synthetic: list[bytes]) -> dict[str, Any]:
    totals = {name: [sum(one[name].values()) for one in rounds] for name in ("real", "synthetic")}
    ratios = [ours / theirs for ours, theirs in zip(totals["synthetic"], totals["real"], strict=True)]
    ratio = statistics.mean(totals["synthetic"]) / statistics.mean(totals["real"])
    mean_bytes = statistics.mean(map(len, synthetic))
    return {
        "what": "decode and transform (resize 256, crop 224, normalise) of synthetic and real JPEGs, one thread",
        "machine": {"cpu": cpu.read().model, "python": platform.python_version()},
        "versions": {"torch": torch.__version__, "torchvision": torchvision.__version__, "pillow": PIL.__version__},
        "files": {"real": len(real), "synthetic": len(synthetic)},
        "mean_bytes": {"real": statistics.mean(map(len, real)), "synthetic": mean_bytes},
        "mean_ms": {name: statistics.mean(values) for name, values in totals.items()},
        "ratio": ratio,
        "ratio_of_rounds": {"least": min(ratios), "median": statistics.median(ratios), "most": max(ratios)},
        "within": {
            "time_15_percent": abs(ratio - 1) <= TIME_TOLERANCE,
            "bytes_10_percent": abs(mean_bytes / MEAN_BYTES - 1) <= BYTES_TOLERANCE,
        },
        "rounds": rounds,
    }


def show(result: dict[str, Any]) -> None:
    print(f"{'':>10} {'files':>6} {'mean KB':>8} {'ms an item':>11}")
    for name in ("real", "synthetic"):
        files, size, time = (result[key][name] for key in ("files", "mean_bytes", "mean_ms"))
        print(f"{name:>10} {files:6d} {size / 1000:8.1f} {time:11.3f}")
    spread = result["ratio_of_rounds"]
    print(f"ratio {result['ratio']:.3f} (rounds {spread['least']:.3f} to {spread['most']:.3f}), {result['within']}")


if __name__ == "__main__":
    main()
