"""Does `stoker run` answer for public training scripts as they are, and leave them as they are?

python benchmarks/run.py --sources DIR [--only mnist,timm] [--rounds 2] [--batches 40]

DIR has a git repository for each source: DIR/OWNER+NAME/repo, DIR/OWNER+NAME or DIR/NAME, with or without a work tree.
What is needed of it is exported to a temporary folder and runs there, on small synthetic data, bare and observed in
alternation. Nothing of it is kept: results have the commit, what the scripts printed as losses, and what Stoker said.
Needs the packages that the scripts import: timm, lightning, jsonargparse[signatures], transformers, datasets, evaluate,
accelerate, torch-geometric, webdataset.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import public_data
from common import arguments, say, write
from msgspec import field

import stoker
from stoker.records import Record, Trial, read

PYTHON = sys.executable
BIN = Path(sys.executable).parent
LIMIT_S = 300.0
_THREADS = {"OMP_NUM_THREADS": "1"}
"""Tiny models are faster so, and what they print is the same each time."""
_LOSS = re.compile(r"loss[_a-z]*['\"]?\W{1,4}([-+]?\d[\d.]*(?:e[-+]?\d+)?)", re.IGNORECASE)


class Case(Record, frozen=True):
    """A public script: where it comes from, how it is called, and the data that it reads.

    Words may contain {data}, the folder of the synthetic data. `paths` of the repository are exported, and `folder` is
    the one that the command runs in. `data` makes what the script reads; it gets the export and the data folder.
    """

    name: str
    repository: str
    paths: tuple[str, ...]
    folder: str
    words: tuple[str, ...]
    data: Callable[[Path, Path], None]
    program: tuple[str, ...] = (PYTHON,)
    loader: bool = True
    environment: dict[str, str] = field(default_factory=dict)


EXAMPLES = "pytorch/examples"
RUN_CLM = "examples/pytorch/language-modeling"
_TIMM: tuple[str, ...] = ("--model", "resnet18", "--epochs", "1", "-b", "8", "-j", "2", "--device", "cpu")
_TIMM += ("--log-interval", "1", "--num-classes", "2", "--output", "{data}/timm", "--warmup-epochs", "0")
_TIMM += ("--sched", "step")
_CLM: tuple[str, ...] = ("--model_type", "gpt2", "--tokenizer_name", "{data}/tokenizer")
_CLM += ("--train_file", "{data}/text.txt", "--validation_file", "{data}/text.txt", "--block_size", "32", "--seed", "1")
_OVERRIDES = "n_layer=2,n_head=2,n_embd=64,vocab_size=600"
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "disabled",
}

CASES = (
    Case(
        name="imagenet",
        repository=EXAMPLES,
        paths=("imagenet",),
        folder="imagenet",
        words=(
            "main.py",
            "{data}/images",
            "--epochs",
            "1",
            "-b",
            "8",
            "-j",
            "2",
            "-p",
            "1",
            "--seed",
            "1",
            "--no-accel",
        ),
        data=public_data.images,
    ),
    Case(
        name="dcgan",
        repository=EXAMPLES,
        paths=("dcgan",),
        folder="dcgan",
        words=(
            *("main.py", "--dataset", "folder", "--dataroot", "{data}/images/train", "--batchSize", "8"),
            *("--niter", "1", "--manualSeed", "1", "--outf", "{data}/dcgan"),
        ),
        data=public_data.images,
    ),
    Case(
        name="mnist",
        repository=EXAMPLES,
        paths=("mnist",),
        folder="mnist",
        words=("main.py", "--epochs", "1", "--no-accel", "--log-interval", "1"),
        data=public_data.mnist,
    ),
    Case(
        name="vae",
        repository=EXAMPLES,
        paths=("vae",),
        folder="vae",
        words=("main.py", "--epochs", "1", "--no-accel", "--log-interval", "1", "--batch-size", "64"),
        data=public_data.mnist,
    ),
    Case(
        name="siamese network",
        repository=EXAMPLES,
        paths=("siamese_network",),
        folder="siamese_network",
        words=("main.py", "--epochs", "1", "--no-accel", "--log-interval", "1"),
        data=public_data.mnist,
    ),
    Case(
        name="mnist, an RNN",
        repository=EXAMPLES,
        paths=("mnist_rnn",),
        folder="mnist_rnn",
        words=("main.py", "--epochs", "1", "--log-interval", "1"),
        data=public_data.mnist,
    ),
    Case(
        name="regression, no DataLoader",
        repository=EXAMPLES,
        paths=("regression",),
        folder="regression",
        words=("main.py",),
        data=public_data.nothing,
        loader=False,
    ),
    Case(
        name="imagenet, 2 gloo ranks",
        repository=EXAMPLES,
        paths=("imagenet",),
        folder="imagenet",
        program=(str(BIN / "torchrun"), "--nproc_per_node", "2", "--master_port", "29611"),
        words=(
            *("main.py", "{data}/images", "--epochs", "1", "-b", "4", "-j", "1", "-p", "1", "--seed", "1"),
            *("--no-accel", "--dist-url", "env://", "--dist-backend", "gloo"),
        ),
        data=public_data.images,
    ),
    Case(
        name="timm",
        repository="huggingface/pytorch-image-models",
        paths=("train.py", "timm"),
        folder=".",
        words=("train.py", "--data-dir", "{data}/images", "--val-split", "val", *_TIMM),
        data=public_data.images,
    ),
    Case(
        name="timm, webdataset",
        repository="huggingface/pytorch-image-models",
        paths=("train.py", "timm"),
        folder=".",
        words=(
            *("train.py", "--dataset", "wds/synthetic", "--data-dir", "{data}/shards"),
            *("--train-split", "train-{{0000..0003}}.tar|96", "--val-split", "val-{{0000..0001}}.tar|16", *_TIMM),
        ),
        data=public_data.shards,
    ),
    Case(
        name="torchvision references",
        repository="pytorch/vision",
        paths=("references/classification",),
        folder="references/classification",
        words=(
            *("train.py", "--data-path", "{data}/images", "--model", "resnet18", "--device", "cpu", "-b", "8"),
            *("-j", "2", "--epochs", "1", "--print-freq", "1"),
        ),
        data=public_data.six_classes,
    ),
    Case(
        name="Lightning",
        repository="Lightning-AI/pytorch-lightning",
        paths=("examples/pytorch/basics",),
        folder="examples/pytorch/basics",
        words=(
            *("autoencoder.py", "--trainer.max_epochs=1", "--trainer.limit_train_batches=40"),
            *("--trainer.limit_val_batches=2", "--trainer.limit_test_batches=2", "--trainer.limit_predict_batches=1"),
            *("--trainer.accelerator=cpu", "--trainer.default_root_dir={data}/lightning"),
        ),
        data=public_data.lightning_mnist,
        environment={"PL_USE_MOCKED_MNIST": "1"},
    ),
    Case(
        name="HF Trainer",
        repository="huggingface/transformers",
        paths=(RUN_CLM,),
        folder=RUN_CLM,
        words=(
            *("run_clm.py", *_CLM, "--config_overrides", _OVERRIDES, "--do_train", "--output_dir", "{data}/clm"),
            *("--max_steps", "40", "--per_device_train_batch_size", "4", "--logging_steps", "1", "--use_cpu"),
            *("--dataloader_num_workers", "2", "--save_strategy", "no", "--report_to", "none"),
        ),
        data=public_data.text,
        environment=_OFFLINE,
    ),
    Case(
        name="accelerate launch",
        repository="huggingface/transformers",
        paths=(RUN_CLM,),
        folder=RUN_CLM,
        program=(str(BIN / "accelerate"), "launch", "--cpu", "--num_processes", "1", "--num_machines", "1"),
        words=(
            *("run_clm.py", *_CLM, "--config_overrides", _OVERRIDES, "--do_train", "--output_dir", "{data}/clm2"),
            *("--max_steps", "40", "--per_device_train_batch_size", "4", "--logging_steps", "1", "--use_cpu"),
            *("--dataloader_num_workers", "2", "--save_strategy", "no", "--report_to", "none"),
        ),
        data=public_data.text,
        environment=_OFFLINE,
    ),
    Case(
        name="PyG",
        repository="pyg-team/pytorch_geometric",
        paths=("examples/mutag_gin.py",),
        folder="examples",
        words=("mutag_gin.py", "--epochs", "6", "--batch_size", "16"),
        data=public_data.graphs,
    ),
)


class Ran(Record, frozen=True):
    """What became of one run of a script."""

    status: int
    wall_s: float
    losses: tuple[str, ...]
    output: str


def source(folder: Path, repository: str) -> Path | None:
    """The git repository of a source among the local copies."""
    owner, _, name = repository.partition("/")
    for place in (f"{owner}+{name}/repo", f"{owner}+{name}", name):
        for path in (folder / place, folder / place / ".git"):
            if (path / "HEAD").is_file():
                return path
    return None


def commit_of(repository: Path) -> str:
    command = ["git", "--git-dir", str(repository), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def export(repository: Path, paths: Sequence[str], target: Path) -> None:
    """Write some paths of the newest commit into a folder."""
    target.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(
        ["git", "--git-dir", str(repository), "archive", "HEAD", *paths], capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)


def run(command: Sequence[str], folder: Path, environment: dict[str, str]) -> Ran:
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **_THREADS, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        status, output = -1, "not over in time"
    wall_s = time.perf_counter() - began
    return Ran(status=status, wall_s=wall_s, losses=tuple(_LOSS.findall(output)), output=output)


def measure(case: Case, repository: Path, rounds: int, batches: int, keep_output: Path | None) -> dict[str, Any]:
    """Run a script bare and observed, in alternation, each in a fresh export with the same data."""
    bare: list[Ran] = []
    observed: list[Ran] = []
    row: dict[str, Any] = {"name": case.name, "repository": case.repository, "commit": commit_of(repository)}
    with tempfile.TemporaryDirectory(prefix="stoker-public-") as place:
        root, data = Path(place) / "source", Path(place) / "data"
        export(repository, case.paths, root)
        data.mkdir()
        case.data(root, data)
        folder = (root / case.folder).resolve()
        command = [*case.program, *(word.format(data=data) for word in case.words)]
        saved = Path(place) / "answer.json"
        ours = [PYTHON, "-m", "stoker", "run", "--batches", str(batches), "--save", str(saved), "--", *command]
        for number in range(rounds):
            order = [(bare, command), (observed, ours)]
            for runs, words in order if number % 2 == 0 else reversed(order):
                runs.append(run(words, folder, case.environment))
        row |= _answer(saved, root)
        if keep_output is not None:
            keep_output.mkdir(parents=True, exist_ok=True)
            for name, runs in (("bare", bare), ("observed", observed)):
                (keep_output / f"{case.name}-{name}.txt").write_text(runs[-1].output, encoding="utf-8")
    return row | {
        "words": [Path(case.program[0]).name, *case.program[1:], *case.words],
        "has_loader": case.loader,
        "said_no_loader": all("no DataLoader was read" in each.output for each in observed),
        "status": [each.status for each in bare],
        "observed_status": [each.status for each in observed],
        "losses": [len(each.losses) for each in bare],
        # Ranks write side by side: their order is chance.
        "losses_repeat": len({tuple(sorted(each.losses)) for each in bare}) == 1,
        "losses_equal": len({tuple(sorted(each.losses)) for each in (*bare, *observed)}) == 1,
        "wall_s": [each.wall_s for each in bare],
        "observed_wall_s": [each.wall_s for each in observed],
    }


def _answer(saved: Path, root: Path) -> dict[str, Any]:
    """What the last observed run answered; nothing of the script's text."""
    if not saved.is_file():
        return {"answered": False}
    trial = read(saved)
    assert isinstance(trial, Trial)
    document = json.loads(saved.read_text(encoding="utf-8"))
    judged = stoker.verdict(trial)
    options = trial.task.options if trial.task is not None else {}
    file = str(options.get("file", ""))
    proposals = document.get("proposals", [])
    return {
        "answered": judged is not None,
        "verdict": judged.bottleneck if judged else None,
        "sentence": judged.sentence if judged else None,
        "file": os.path.relpath(file, root) if file else None,
        "line": options.get("line"),
        "mode": trial.workload.mode,
        "workers": trial.setting.num_workers,
        "batches": len(trial.timeline.items),
        "stages": sorted(trial.stages),
        "ranks": 1 + len(document.get("ranks", [])),
        "proposals": [{"changes": each["remedy"]["changes"], "gain": each["gain"]} for each in proposals],
        "problems": document.get("problems", []),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sources", type=Path, required=True, help="folder of local copies of the repositories")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--keep-output", type=Path, default=None, help="folder for what the scripts printed")
    options = parser.parse_args()
    wanted = [name.strip() for name in options.only.split(",") if name.strip()]
    path = options.output / "run-public.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    for case in CASES:
        if wanted and not any(name in case.name for name in wanted):
            continue
        repository = source(options.sources, case.repository)
        if repository is None:
            say(f"{case.name}: no copy of {case.repository} in {options.sources}")
            continue
        row = measure(case, repository, options.rounds, options.batches, options.keep_output)
        rows = [each for each in rows if each["name"] != case.name] + [row]
        order = [each.name for each in CASES]
        write(options.output, "run-public", sorted(rows, key=lambda each: order.index(each["name"])))
        added = min(row["observed_wall_s"]) - min(row["wall_s"])
        say(
            f"{case.name}: answered {row['answered']}, {row.get('verdict')} at {row.get('file')}:{row.get('line')}, "
            f"status {row['status']} / {row['observed_status']}, losses {row['losses']} equal {row['losses_equal']}, "
            f"{added:+.1f} s of {min(row['wall_s']):.1f} s"
        )


if __name__ == "__main__":
    main()
