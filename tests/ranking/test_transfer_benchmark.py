"""benchmarks/transfer.py on a table small enough to work out by hand."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "transfer.py"
HEAD = "Transferability Metric,Source Architecture,Transferability Metric Score,Test Accuracy,Trainable Backbone,Target"
MODELS = {"vgg16": (1, 0.5), "resnet50": (3, 0.7), "xception": (2, 0.8)}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_without_a_table_it_says_where_to_get_one(tmp_path: Path) -> None:
    for arguments in ([], [str(tmp_path / "none.csv")]):
        done = run(*arguments)
        assert done.returncode == 2
        assert "https://github.com/google-research/google-research/tree/master/stable_transfer" in done.stderr
        assert "Traceback" not in done.stderr


def test_regret_and_tau_of_a_small_table(tmp_path: Path) -> None:
    lines = [f"{HEAD} Dataset"]
    for target, sign in (("one", 1), ("two", -1)):
        for trained in ("True", "False"):
            for metric in ("nleep", "logme"):
                lines += [f"{metric},{m},{sign * s},{a},{trained},{target}" for m, (s, a) in MODELS.items()]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = run(str(tmp_path / "table.csv"), "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "transfer.json").read_text(encoding="utf-8"))["rows"]
    found = {row["order"]: row for row in rows if row["accuracy"] == "fine-tuned"}
    assert found["nleep"]["regret"]["by_target"] == pytest.approx([10, 30])  # resnet50 is chosen, then vgg16
    assert found["upstream"]["regret"]["by_target"] == pytest.approx([0, 0])
    assert found["upstream"]["tau"]["mean"] == pytest.approx(1)
    assert found["nleep"]["tau"]["mean"] < 1
