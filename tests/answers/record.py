"""Asks Stoker the questions whose answers are stored in this folder. `tests/test_answers.py` compares.

Run `python tests/answers/record.py [limits] [predictions] [verdicts] [machines]` to store what it answers now: all of
them without a name. Do so only for a change of answers that the CHANGELOG names, and read the difference in git first.
"""

import gzip
import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import stoker
from stoker.records import Mode, Precision, decode, encode

HERE = Path(__file__).resolve().parent
TREES = HERE.parent / "trees"
TRACED_PACKAGES = ("torch", "torchvision", "timm", "transformers")
"""Another version of one of them may take other memory for the same step."""


def _public(name: str, before: str) -> Callable[[Any], Any]:
    """A public function, or the place that it had before it became public, as `module:function`."""
    if hasattr(stoker, name):
        return getattr(stoker, name)  # type: ignore[no-any-return]
    module, _, attribute = before.partition(":")
    return getattr(import_module(module), attribute)  # type: ignore[no-any-return]


def _plain(found: Any) -> Any:
    """A record as its JSON says it."""
    return json.loads(encode(found))


# ---------------------------------------------------------------- the largest batch, traced


class Traced(NamedTuple):
    """One question to `limit --method trace`."""

    spec: str
    mode: Mode
    precision: Precision
    optimizer: str | None
    gpu_memory: str
    gpu: str

    @property
    def name(self) -> str:
        return " ".join((self.spec, self.mode, self.precision, self.optimizer or "own", self.gpu_memory))

    def answer(self) -> Any:
        own = ":" in self.spec
        source = (
            stoker.WorkloadSpec(spec=f"{HERE}/{self.spec}")
            if own
            else stoker.WorkloadSpec(spec=self.spec, data="device")
        )
        found = stoker.limit(
            source,
            method="trace",
            mode=self.mode,
            precision=self.precision,
            optimizer=self.optimizer,
            gpu_memory=self.gpu_memory,
            gpu=self.gpu,
        )
        answer = json.loads(encode(found).decode().replace(f"{HERE}/", ""))
        del answer["seconds"]
        return answer


# Model, GPU and its memory; the optimizers of training in full and in half precision; the precision of inference.
# Every row names its GPU: without a name, the answer is for the GPU of the machine that asks.
_ROWS: tuple[tuple[str, str, str, str | None, str | None, Precision], ...] = (
    ("alexnet", "a100", "16GiB", None, "adam", "fp32"),
    ("resnet18", "a5000", "24GiB", "momentum", None, "bf16"),
    ("vgg11", "h200", "80GiB", "sgd", "adamw", "fp32"),
    ("mobilenet_v3_small", "a100", "8GiB", None, "adam", "fp16"),
    ("squeezenet1_1", "a5000", "12GiB", "adam", "sgd", "bf16"),
    ("vit_b_32", "h200", "40GiB", "adamw", None, "fp32"),
    ("r3d_18", "a100", "32GiB", None, "momentum", "bf16"),
    ("timm/vit_tiny_patch16_224", "a100", "16GiB", "adamw", "adam", "fp16"),
    ("hf/distilbert-base-uncased", "a5000", "24GiB", None, "adamw", "bf16"),
    ("hf/gpt2", "h200", "40GiB", "adam", None, "fp32"),
    ("own_models.py:recurrent", "a100", "4GiB", None, "adam", "bf16"),
    ("own_models.py:autoencoder", "a5000", "6GiB", None, "momentum", "fp32"),
)


def _traced() -> Iterator[Traced]:
    for spec, gpu, memory, full, half, precision in _ROWS:
        yield Traced(spec, "train", "fp32", full, memory, gpu)
        yield Traced(spec, "train", "bf16", half, memory, gpu)
        yield Traced(spec, "infer", precision, None, memory, gpu)


TRACED = {question.name: question for question in _traced()}


def versions() -> dict[str, str | None]:
    """The installed versions that a traced answer depends on; None for what is not installed."""
    found: dict[str, str | None] = {}
    for package in TRACED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def limits() -> dict[str, Any]:
    """The answers to `TRACED`, and the versions that gave them."""
    return {"versions": versions(), "answers": {name: question.answer() for name, question in TRACED.items()}}


# ---------------------------------------------------------------- predictions from stored probes

_SETTINGS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"batch_size": 32}, {}),
    ({"batch_size": 8, "num_workers": 1}, {"items": 500}),
    ({"batch_size": 32, "num_workers": 2}, {}),
    ({"batch_size": 48, "num_workers": 3, "prefetch_factor": 4}, {}),
    ({"batch_size": 64, "num_workers": 4, "in_order": False}, {}),
    ({"batch_size": 128, "num_workers": 8, "pin_memory": True}, {"items": 1500}),
    ({"batch_size": 256, "num_workers": 16}, {}),
    ({"batch_size": 32, "num_workers": 2, "persistent_workers": True}, {"items": 600, "epochs": 3}),
    ({"batch_size": 32, "num_workers": 2}, {"items": 600, "epochs": 3}),
    ({"batch_size": 16, "num_workers": 4, "accumulate": 4}, {"items": 800}),
    ({"batch_size": 64, "num_workers": 6}, {"cores": 4.0}),
    ({"batch_size": 64, "num_workers": 2}, {"faster": {"step": 2.0}}),
)


def _in_words(setting: dict[str, Any], options: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in {**setting, **options}.items())


def predictions() -> dict[str, Any]:
    """For each stored probe file, what each setting would cost."""
    found: dict[str, Any] = {}
    for file in sorted((HERE / "probes").glob("*.json.gz")):
        probes = decode(gzip.decompress(file.read_bytes()), stoker.Probes)
        found[file.name.removesuffix(".json.gz")] = {
            _in_words(setting, options): _plain(stoker.predict(probes, stoker.Setting(**setting), **options))
            for setting, options in _SETTINGS
        }
    return found


# ---------------------------------------------------------------- verdicts on stored trials


def verdicts() -> dict[str, Any]:
    """What each stored trial is limited by, and what would help."""
    verdict = _public("verdict", "stoker.analysis.verdict:verdict")
    advise = stoker.advise
    found: dict[str, Any] = {}
    for line in gzip.decompress((HERE / "trials.jsonl.gz").read_bytes()).splitlines():
        trial = decode(line, stoker.Trial)
        name = f"{trial.workload.name} {trial.workload.data} {trial.workload.mode} {trial.setting.num_workers} workers"
        found[name] = {"verdict": _plain(verdict(trial)), "remedies": _plain(advise(trial))}
    return found


# ---------------------------------------------------------------- recorded machines

_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OPENCV_FOR_THREADS_NUM": "1"}
"""Without hints that depend on the GPUs and packages here."""


def machines() -> dict[str, Any]:
    """What `doctor` finds in each recorded tree, without the parts that it reads from the machine it runs on."""
    return {tree.name: _machine(tree) for tree in sorted(TREES.iterdir())}


def _machine(tree: Path) -> dict[str, Any]:
    found = _plain(stoker.doctor(root=tree, data=Path("/data"), environ=_ENVIRONMENT))
    answer = {name: found[name] for name in ("cpu", "host", "storage", "hints")}
    del answer["host"]["start_method"]
    if not (tree / "proc/self/limits").exists():
        del answer["host"]["open_files_soft"], answer["host"]["open_files_hard"], answer["hints"]
    if not (tree / "proc/cpuinfo").exists():
        del answer["cpu"]
        answer.pop("hints", None)
    return answer


# ---------------------------------------------------------------- stored answers

ANSWERS: dict[str, Callable[[], dict[str, Any]]] = {
    "limits": limits,
    "predictions": predictions,
    "verdicts": verdicts,
    "machines": machines,
}


def stored(name: str) -> Any:
    """The answers as they were recorded."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def main() -> None:
    for name in sys.argv[1:] or ANSWERS:
        text = json.dumps(ANSWERS[name](), indent=1, ensure_ascii=False)
        (HERE / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
        sys.stdout.write(f"{name}.json written\n")


if __name__ == "__main__":
    main()
