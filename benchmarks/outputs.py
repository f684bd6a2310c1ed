"""Runs the commands that README and docs show, and keeps what they print.

python benchmarks/outputs.py [NAME ...]
"""

import os
import re
import shlex
import subprocess
import sys

from common import RESULTS, say

COMMANDS = {
    "profile": "stoker profile resnet18 --data jpeg --mode infer --batch-size 32 --workers 2 --batches 20",
    "tune": "stoker tune resnet18 --data jpeg --mode infer --items 512 --max-batch 64 --current batch=32,workers=0",
    "doctor": "stoker doctor",
    "limit": "stoker limit resnet50 --gpu-memory 16GiB --optimizer momentum",
}


def main() -> None:
    folder = RESULTS / "outputs"
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or COMMANDS:
        words = shlex.split(COMMANDS[name])
        command = [sys.executable, "-m", "stoker", *words[1:], "--quiet"]
        environ = {**os.environ, "COLUMNS": "88"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
        lines = [re.sub(r" on Linux-\S+", " on Linux", line).rstrip() for line in done.stdout.splitlines()]
        kept = "\n".join(line for line, before in zip(lines, ["", *lines], strict=False) if line or before)
        (folder / f"{name}.txt").write_text(f"$ {COMMANDS[name]}\n{kept}\n", encoding="utf-8")
        say(f"{name}: kept")


if __name__ == "__main__":
    main()
