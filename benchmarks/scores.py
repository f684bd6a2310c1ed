"""What each score costs: seconds and peak memory at 100,000 items × 2,048 features (kNN and PARC: 20,000 items).

python benchmarks/scores.py [--items 100000] [--pairs 20000] [--only logme,…]

Each score runs in a process of its own, on features that it has read into memory. Wall time depends on who else uses
the cores, processor time less so: the load before and after is in the rows. `extra_bytes`: memory beside the features.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, say, write

from stoker.ranking.resampling import score_model
from stoker.ranking.scores import SCORES

WIDTH, CLASSES, SOURCE_CLASSES, SEED = 2048, 100, 1000, 0
RANKED_ITEMS = 10_000
"""Items of the row that measures a candidate's two default scores with all resamples."""
BLOCK = 4096


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=20_000, help="items of scores that compare all pairs")
    parser.add_argument("--only", default="", help="some scores, with commas")
    parser.add_argument("--child", nargs=3, metavar=("SCORE", "FOLDER", "ITEMS"), help="one score, in this process")
    options = parser.parse_args()
    if options.child:
        say(json.dumps(measured(options.child[0], Path(options.child[1]), int(options.child[2]))))
        return
    names = options.only.split(",") if options.only else [*SCORES, "default scores, resampled"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), options.items)
        for name in names:
            items = RANKED_ITEMS if name not in SCORES else options.items
            if name in SCORES and SCORES[name].squared:
                items = min(options.pairs, options.items)
            row = run(name, Path(folder), min(items, options.items))
            rows.append(row)
            say(line(row))
    write(options.output, "scores", rows)


def make(folder: Path, items: int) -> None:
    """Features like those of a network behind a ReLU: a few strong directions, many weak ones; and a source head."""
    random = np.random.default_rng(SEED)
    labels = random.integers(CLASSES, size=items)
    centres = random.standard_normal((CLASSES, 256), dtype=np.float32)
    mixing = random.standard_normal((256, WIDTH), dtype=np.float32) / 16
    head = random.standard_normal((256, SOURCE_CLASSES), dtype=np.float32) / 4
    strength = np.arange(1, 257, dtype=np.float32) ** -0.5
    names = {"features": WIDTH, "probabilities": SOURCE_CLASSES}
    files = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, (items, width))
        for name, width in names.items()
    }
    for start in range(0, items, BLOCK):
        few = slice(start, start + BLOCK)
        latent = centres[labels[few]] + random.standard_normal((len(labels[few]), 256), dtype=np.float32)
        noise = 0.3 * random.standard_normal((len(latent), WIDTH), dtype=np.float32)
        files["features"][few] = np.maximum((latent * strength) @ mixing + noise, 0)
        logits = (latent * strength) @ head
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        files["probabilities"][few] = shares / shares.sum(axis=1, keepdims=True)
    np.save(folder / "labels.npy", labels)


def run(name: str, folder: Path, items: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", name, str(folder), str(items)]
    before = os.getloadavg()[0]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed: {done.stderr.strip()}")
    row: dict[str, Any] = json.loads(done.stdout)
    return {**row, "load_before": round(before, 2), "load_after": round(os.getloadavg()[0], 2)}


def measured(name: str, folder: Path, items: int) -> dict[str, Any]:
    labels = np.load(folder / "labels.npy")[:items]
    needs = SCORES[name].needs if name in SCORES else "features"
    source = np.load(folder / ("features.npy" if needs == "features" else "probabilities.npy"), mmap_mode="r")[:items]
    given = source.argmax(axis=1) if needs == "source labels" else np.array(source)
    score = function(name)
    score(given[:200], labels[:200] % 4)  # imports and thread pools
    start_bytes = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is counted from here
    wall, processor = time.perf_counter(), time.process_time()
    value = score(given, labels)
    wall_s, processor_s = time.perf_counter() - wall, time.process_time() - processor
    return {
        "score": name,
        "items": items,
        "width": int(given.shape[1]) if given.ndim == 2 else 1,
        "features_bytes": int(given.nbytes),
        "wall_s": wall_s,
        "processor_s": processor_s,
        "extra_bytes": max(0, resident("VmHWM") - start_bytes),
        "value": value,
    }


def function(name: str) -> Callable[[Any, Any], float]:
    if name in SCORES:
        return SCORES[name].function
    return lambda features, labels: float(len(score_model(labels, features=features)[0].resampled))


def resident(field: str) -> int:
    """Bytes of this process in memory, now or at most."""
    for each in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if each.startswith(field):
            return int(each.split()[1]) * 1024
    raise SystemExit(f"this system does not say {field}")


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['score']:26s} {row['items']:7,d} × {row['width']:5,d}  {row['wall_s']:7.1f} s  "
        f"processor {row['processor_s']:7.1f} s  beside features {row['extra_bytes'] / 2**20:6.0f} MiB  "
        f"load {row['load_before']:.1f} – {row['load_after']:.1f}"
    )


if __name__ == "__main__":
    main()
