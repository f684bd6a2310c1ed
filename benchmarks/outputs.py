"""Writes what the commands in README and docs print to results/outputs/, for `make tables` to copy.

python benchmarks/outputs.py [NAME ...]
python benchmarks/outputs.py --check    change nothing; status 1 if the table of a stored trial is out of date

A command in `COMMANDS` is run here. A profile in `STORED` ran on a GPU earlier: its raw trial is stored, and its table
is rendered from that.
"""

import gzip
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from common import RESULTS, say

from stoker.records import Trial, parse

COMMANDS = {
    "profile": "stoker profile resnet18 --data jpeg --mode infer --batch-size 32 --workers 2 --batches 20",
    "tune": "stoker tune resnet18 --data jpeg --mode infer --items 512 --max-batch 64 --current batch=32,workers=0",
    "doctor": "stoker doctor",
    "limit": "stoker limit resnet50 --gpu-memory 16GiB --optimizer momentum",
    "run": "stoker run --stop --verify remote.py",
}
STORED = {
    "profile-h200-1-worker": ("resnet18", "jpeg", "infer", 1),
}
"""Model, data, mode and workers of a trial in results/h200/profiles-trials.jsonl.gz."""

SCRIPTS = Path(__file__).parent / "scripts"
WIDTH = "88"
"""Columns, so that the tables fit into a page."""


def ran(command: str) -> list[str]:
    """The lines that a command prints; of `run` those on stderr, about a script of `benchmarks/scripts`."""
    if command.startswith("stoker run"):
        words = [sys.executable, "-m", "stoker", *shlex.split(command)[1:]]
        done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=SCRIPTS)
        return [line.rstrip() for line in done.stderr.splitlines()]
    words = [sys.executable, "-m", "stoker", *shlex.split(command)[1:], "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [re.sub(r" on Linux-\S+", " on Linux", line).rstrip() for line in done.stdout.splitlines()]


def stored(model: str, data: str, mode: str, workers: int) -> Trial:
    """The raw trial of that profile on the H200."""
    for line in gzip.decompress((RESULTS / "h200" / "profiles-trials.jsonl.gz").read_bytes()).splitlines():
        trial = parse(line)
        if isinstance(trial, Trial):
            subject = trial.workload
            if (subject.name, subject.data, subject.mode, trial.setting.num_workers) == (model, data, mode, workers):
                return trial
    raise LookupError(f"no stored trial of {model}, {data}, {mode}, {workers} workers")


def command_of(trial: Trial) -> str:
    """The command that makes the same run."""
    subject, setting = trial.workload, trial.setting
    what = f"stoker profile {subject.name} --data {subject.data} --mode {subject.mode} --items {subject.items}"
    return f"{what} --batch-size {setting.batch_size} --workers {setting.num_workers} --batches {trial.extent.batches}"


def text_of(name: str) -> str:
    """The command and what it prints, without repeated empty lines."""
    if name in STORED:
        trial = stored(*STORED[name])
        command, lines = command_of(trial), str(trial).splitlines()
    else:
        command, lines = COMMANDS[name], ran(COMMANDS[name])
    text = "\n".join(line for line, before in zip(lines, ["", *lines], strict=False) if line or before)
    return f"$ {command}\n{text}\n"


def main() -> None:
    folder = RESULTS / "outputs"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["COLUMNS"] = WIDTH
    if "--check" in sys.argv:
        stale = [name for name in STORED if (folder / f"{name}.txt").read_text(encoding="utf-8") != text_of(name)]
        for name in stale:
            say(f"{name} is out of date: run python benchmarks/outputs.py {name}")
        sys.exit(1 if stale else 0)
    for name in sys.argv[1:] or [*COMMANDS, *STORED]:
        (folder / f"{name}.txt").write_text(text_of(name), encoding="utf-8")
        say(f"{name}: written")


if __name__ == "__main__":
    main()
