"""Is what `stoker run` proposes faster, and by as much as it predicts? Six scripts that wait for their data.

Run: python benchmarks/run_proof.py [NAME ...] [--batches 60]

Each script runs unchanged under `stoker run --stop --verify`, once for the proposal and then with the present and the
two proposed settings in alternation. Scripts that are not named keep their stored rows.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import arguments, say, write

SCRIPTS = Path(__file__).parent / "scripts"
NAMES = ("remote", "images", "compute", "uneven", "stream", "trainer")
RESULT = "run-proof"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES), metavar="NAME")
    parser.add_argument("--batches", type=int, default=60)
    asked = parser.parse_args()
    path = asked.output / f"{RESULT}.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    rows = {row["script"]: row for row in kept}
    for name in asked.names:
        rows[name] = proof(name, asked.batches)
        say(line(rows[name]))
    write(asked.output, RESULT, [rows[name] for name in NAMES if name in rows])


def proof(name: str, batches: int) -> dict[str, Any]:
    """The proposal for one script, predicted and measured."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "run.json"
        options = ["--stop", "--verify", "--quiet", "--batches", str(batches), "--save", str(saved)]
        command = [sys.executable, "-m", "stoker", "run", *options, f"{name}.py"]
        subprocess.run(command, cwd=SCRIPTS, check=True, stdout=subprocess.DEVNULL)
        document = json.loads(saved.read_text(encoding="utf-8"))
    return {
        "script": name,
        "about": (SCRIPTS / f"{name}.py").read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0],
        "batches": batches,
        "setting": {key: document["setting"][key] for key in ("batch_size", "num_workers", "prefetch_factor")},
        "verdict": document["verdict"],
        "interference": document["interference"],
        "proposals": [_proposal(each) for each in document["proposals"]],
    }


def _proposal(found: dict[str, Any]) -> dict[str, Any]:
    verified = found["verified"]
    return {
        "changes": found["remedy"]["changes"],
        "where": [*(edit["sentence"] for edit in found["edits"]), *filter(None, [" ".join(found["arguments"])])],
        "predicted_gain": found["gain"],
        "before_s": verified["before_s"],
        "after_s": verified["after_s"],
        "measured_gain": verified.get("measured_gain"),
        "problem": verified["problem"],
    }


def line(row: dict[str, Any]) -> str:
    if not row["proposals"]:
        return f"{row['script']}: nothing is proposed"
    best = row["proposals"][0]
    return (
        f"{row['script']}: {best['changes']}: {best['predicted_gain']:.2f} predicted, "
        f"{best['measured_gain'] or float('nan'):.2f} measured"
    )


if __name__ == "__main__":
    main()
