"""The small presets, run as a new user runs them: how long they take, and the trials behind the tables of the docs.

python benchmarks/study_presets.py [PRESET…]        without names, all of them one after another

Each preset gets a fresh database and a fresh cache, so that its data sets are built within the measured time. Its
trials go to studies/PRESET.csv, its wall time to studies/PRESET.json. The `time` line of a preset that finished is
written into its grid. Run it on an idle machine.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from common import arguments, say, write

from stoker.studies import presets
from stoker.studies.presets import preset_names

GRIDS = Path(presets.__file__).parent / "small"


def measured(name: str, folder: Path) -> dict[str, Any]:
    """Run a small preset in a database of its own and write its trials: seconds, runs, outcomes."""
    with tempfile.TemporaryDirectory(prefix="stoker-") as place:
        environ = {**os.environ, "STOKER_CACHE": place}
        began = perf_counter()
        command = ["study", "run", name, "--scale", "small", "--json", "--quiet"]
        summary = json.loads(_stoker(*command, place=place, environ=environ))
        wall_s = perf_counter() - began
        target = folder / f"{name}.csv"
        _stoker("study", "export", f"{name}-small", "-o", str(target.absolute()), place=place, environ=environ)
    parts = ("slots", "ran", "outcomes", "unfinished")
    return {"preset": name, "wall_s": wall_s, **{part: summary[part] for part in parts}}


def _stoker(*command: str, place: str, environ: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "stoker", *command],
        cwd=place,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"stoker {' '.join(command)} ended with status {done.returncode}")
    return done.stdout


def time_text(row: dict[str, Any]) -> str:
    """What a preset says of its time."""
    minutes = row["wall_s"] / 60
    return f"{minutes:.0f} min on two cores" if minutes >= 1.5 else f"{row['wall_s']:.0f} s on two cores"


def note_time(row: dict[str, Any]) -> None:
    """Write the measured time into the preset's grid."""
    path = GRIDS / f"{row['preset']}.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"(?m)^time = .*$", f'time = "{time_text(row)}"', text), encoding="utf-8")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("presets", nargs="*", metavar="PRESET", help=", ".join(preset_names()))
    options = parser.parse_args()
    unknown = [name for name in options.presets if name not in preset_names()]
    if unknown:
        parser.error(f"no such preset: {unknown[0]}; choose {', '.join(preset_names())}")
    folder = options.output / "studies"
    folder.mkdir(parents=True, exist_ok=True)
    for name in options.presets or preset_names():
        row = measured(name, folder)
        say(f"{name}: {row['ran']} runs in {row['wall_s']:.0f} s, {row['outcomes']}")
        write(folder, name, [row])
        if folder.parent.name == "two-cores":
            note_time(row)


if __name__ == "__main__":
    main()
