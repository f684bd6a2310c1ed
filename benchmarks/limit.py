"""The largest batch by every method and by two peers, against sizes that were run in fresh processes. Needs a GPU.

python benchmarks/limit.py [--limit 480] [--baselines | --alone | --more | --unseen] [--previous FILE]

A row is one question. Without `--alone` rows run side by side, as many as the card's memory holds: memory does not know
of its neighbours, but seconds do, so those of `--alone` are the ones to quote (each model at 16 GiB, with the peers).
`--more` asks the peers what was asked of six models besides, `--baselines` runs two-point and doubling for rows without
them. Rows that the result file has are not run again, so that several runs add up.

The peers get their batches as our tries do, made on the device: what a loader would cost is nobody's.
"""

import contextlib
import importlib
import json
import math
import signal
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from common import arguments, say, write

from stoker.events import Phase

Row = dict[str, Any]
GIB = 2**30
CARD_GIB, AT_ONCE, PEERS_AT_ONCE = 126, 9, 2
_ROW_S = 35
PEER_S = 110
"""What another tool is given for one answer."""
_FINE = 400
"""The edge is found to one part in so many: a quarter of a per cent."""
MODELS = [
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet152",
    "alexnet",
    "densenet201",
    "vit_b_16",
    "hf/bert-base-uncased",
    "mobilenet_v2",
    "efficientnet_v2_s",
    "vit_b_32",
    "r3d_18",
    "hf/roberta-base",
    "resnet101",
    "vit_l_16",
    "vit_l_32",
    "efficientnet_v2_l",
    "timm/convnext_tiny",
    "timm/mixer_b16_224",
    "timm/regnety_016",
    "timm/deit_small_patch16_224",
]
UNSEEN = [
    ("vgg11", 8, {}),
    ("swin_t", 24, {"optimizer": "adam"}),
    ("wide_resnet50_2", 12, {}),
    ("convnext_small", 32, {"precision": "bf16"}),
    ("regnet_y_800mf", 20, {"precision": "fp16", "optimizer": "adamw"}),
    ("shufflenet_v2_x1_0", 6, {"optimizer": "sgd"}),
    ("mnasnet1_0", 10, {"mode": "infer"}),
    ("timm/resnetv2_50", 14, {"optimizer": "adamw"}),
    ("timm/vit_small_patch32_224", 9, {"precision": "bf16"}),
    ("hf/distilbert-base-uncased", 18, {"optimizer": "adam"}),
    ("hf/gpt2", 22, {}),
    ("mobilenet_v3_large", 48, {"mode": "infer", "precision": "bf16"}),
]
"""Questions that nobody looked at while the trace was being written: run once, for the trace to be checked against."""
MORE = ["resnet18", "resnet50", "alexnet", "densenet201", "vit_b_16", "hf/bert-base-uncased"]


def question(model: str, gib: int = 16, mode: str = "train", precision: str = "fp32", **more: Any) -> Row:
    optimizer = more.get("optimizer", "momentum" if mode == "train" else None)
    row = {"model": model, "gib": gib, "mode": mode, "precision": precision, "optimizer": optimizer}
    return {**row, "device": "cuda"}


def questions() -> list[Row]:
    """Those that need most of the card come first: the others run beside them."""
    rows = [*(question(model) for model in MODELS), *more_questions()]
    return sorted(rows, key=lambda row: -row["gib"])


def more_questions() -> list[Row]:
    rows = [question(model, gib) for gib in (80, 40) for model in MORE]
    rows += [question(model, 24, "infer") for model in MORE]
    rows += [question(model, precision="bf16") for model in MORE]
    rows += [question(model, optimizer="adamw") for model in MORE]
    rows += [question(model, 11) for model in MORE]
    return rows


def key(row: Row) -> str:
    return f"{row['model']} {row['mode']} {row['precision']} {row['optimizer']} {row['gib']}"


# ---------------------------------------------------------------- one row


def asked(row: Row) -> dict[str, Any]:
    names = ("mode", "precision", "optimizer", "device")
    return {"gpu_memory": int(row["gib"] * GIB), **{name: row[name] for name in names}}


def answer(row: Row, *, peers: bool, budget_s: float) -> Row:
    """Our answers to one question against the truth; with `peers`, beside those of the other tools."""
    import torch

    import stoker

    began = perf_counter()
    if peers:
        _import_libraries()
    source = stoker.WorkloadSpec(spec=row["model"], data="device")
    found: Row = {**row, "key": key(row), "peers": peers, "torch": str(torch.__version__)}
    found |= in_child(_versions)  # it cannot be asked here: nothing that uses a GPU could be forked afterwards
    found["auto"] = brief(stoker.limit(source, method="auto", **asked(row)))
    auto = found["auto"]["max_batch"]
    if not peers:
        failed = [probe["batch_size"] for probe in found["auto"]["probes"] if not probe["ran"]]
        found["truth"] = truth(row, auto, failed, (-0.08, -0.04, -0.02, 0.01, 0.02, 0.04))
        found |= by_thesis(row)
    elif perf_counter() - began < budget_s:
        for name, run in (("lightning", lightning), ("accelerate", accelerate)):
            found[name] = forked(run, row, auto)
    found["wall_s"] = perf_counter() - began
    return found


def by_thesis(row: Row) -> Row:
    """Its two methods' answers, for a row that may have others already."""
    import stoker
    from stoker.errors import StokerError

    source = stoker.WorkloadSpec(spec=row["model"], data="device")
    found: Row = {}
    for method in ("two-point", "doubling"):
        try:
            found[method] = brief(stoker.limit(source, method=method, **asked(row)))
        except StokerError as error:
            found[method] = {"problem": str(error)}
    return {**row, **found}


def _import_libraries() -> None:
    """Before the process is there that tries are forked from: it has then what the peers' processes have, for Lightning
    imports transformers on its own account."""
    for name in ("timm", "transformers"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _versions(emit: Any) -> Row:
    """Asking for it also sees to it that the process that tries are forked from is there before time counts."""
    import torch

    return {"cudnn": torch.backends.cudnn.version()}


def brief(found: Any) -> Row:
    return {
        "max_batch": found.max_batch,
        "interval": list(found.interval),
        "comfortable_batch": found.comfortable_batch,
        "predicted_batch": found.predicted_batch,
        "predicted_interval": list(found.predicted_interval) if found.predicted_interval else None,
        "seconds": found.seconds,
        "notes": list(found.notes),
        "probes": [
            {
                "batch_size": probe.batch_size,
                "ran": probe.outcome == "done",
                "peak_bytes": probe.peak_bytes,
                "reserved_bytes": probe.reserved_bytes,
                "retries": probe.retries,
                "seconds": probe.seconds,
            }
            for probe in found.probes
        ],
    }


def in_child(function: Any, *arguments: Any) -> Any:
    from stoker.measure.session import trial_server
    from stoker.process import child

    ended = child.run(function, arguments, kind=dict, server=trial_server(), timeout_s=200)
    if ended.result is not None:
        return ended.result
    return {"problem": (ended.failure.sentence if ended.failure else ended.output)[-300:] or ended.how}


def forked(function: Any, *arguments: Any) -> Any:
    """As ours are: in a process forked from one that has imported all that is needed, and touched no device."""
    import accelerate  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    import pytorch_lightning  # type: ignore[import-not-found,unused-ignore]  # noqa: F401

    from stoker.process.fork import Forked
    from stoker.process.wire import Failure

    def timed() -> Row:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PEER_S)
        found: Row = function(*arguments, lambda _: None)
        return found

    call = Forked(timed, dict)
    result = call.result()
    if call.signal == signal.SIGALRM:
        return {"problem": f"not done after {PEER_S} s", "more_than_s": PEER_S}
    return {"problem": result.sentence[-300:]} if isinstance(result, Failure) else result


def truth(row: Row, auto: int, failed: list[int], beside: tuple[float, ...]) -> Row:
    """The band: the answer run three times more, then sizes around it, each in a fresh process."""
    found: Row = in_child(_truth, row, auto, failed, beside)
    return found


def _truth(row: Row, auto: int, failed: list[int], beside: tuple[float, ...], emit: Any) -> Row:
    from stoker.measure.session import open_workload
    from stoker.memory.tries import TryFactory, TryJob, TryOrder
    from stoker.records import Setting, WorkloadSpec
    from stoker.workload.optimizers import OPTIMIZERS

    workload = open_workload(WorkloadSpec(spec=row["model"], data="device"), row["mode"], emit)
    if row["optimizer"]:
        workload = workload.with_(optimizer=OPTIMIZERS[row["optimizer"]])
    setting = Setting(precision=row["precision"])
    job = TryJob(mode=row["mode"], setting=setting, device=row["device"], budget_bytes=int(row["gib"] * GIB))
    factory = TryFactory(workload, job, lazy=True)
    tries: dict[int, bool] = dict.fromkeys(failed, False)

    def runs(size: int) -> bool:
        emit(Phase(name="trying_batch", text=f"{size}"))
        if size not in tries:
            tries[size] = factory.attempt(TryOrder(batch_size=size)).outcome == "done"
        return tries[size]

    again = [factory.attempt(TryOrder(batch_size=auto)).outcome for _ in range(3)]
    tries[auto] = all(outcome == "done" for outcome in again)
    low, high = auto, min((size for size in failed if size > auto), default=auto * 2)
    while high - low > max(1, low // _FINE):
        middle = (low + high) // 2
        low, high = (middle, high) if runs(middle) else (low, middle)
    for share in beside:
        runs(high + max(1, int(share * high)) if share > 0 else low + int(share * low))
    ran = [size for size, fits in tries.items() if fits]
    broken = [size for size, fits in tries.items() if not fits]
    return {
        "last_ran": max(ran, default=0),
        "first_failed": min(broken, default=None),
        "edge": low,
        "tries": {str(size): fits for size, fits in sorted(tries.items())},
        "again": again,
    }


# ---------------------------------------------------------------- the peers


def _peer_parts(row: Row, emit: Any) -> tuple[Any, Any, Any]:
    """The same model, optimizer and batches for another tool; the allocator capped as ours is."""
    import torch

    from stoker.measure.session import open_workload
    from stoker.records import WorkloadSpec
    from stoker.workload import calls
    from stoker.workload.example import worst_example
    from stoker.workload.optimizers import OPTIMIZERS

    workload = open_workload(WorkloadSpec(spec=row["model"], data="device"), row["mode"], emit)
    workload = workload.with_(optimizer=OPTIMIZERS[row["optimizer"] or "momentum"])
    if row["device"] == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(row["gib"] * GIB / total)
    return workload, calls.make_model(workload), worst_example(workload)


def lightning(row: Row, auto: int, emit: Any) -> Row:
    """Lightning's batch size finder, by doubling and bisection in one process."""
    import logging
    import warnings

    import pytorch_lightning as lit  # type: ignore[import-not-found,unused-ignore]
    from pytorch_lightning.tuner.tuning import Tuner  # type: ignore[import-not-found,unused-ignore]
    from torch.utils.data import DataLoader

    from stoker.workload import calls

    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    began = perf_counter()
    workload, model, example = _peer_parts(row, emit)

    class Module(lit.LightningModule):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.batch_size = model, 2

        def training_step(self, batch: Any, index: int) -> Any:
            inputs, target = calls.split(batch)
            return calls.loss_of(workload, calls.forward(workload, self.model, inputs), target)

        def validation_step(self, batch: Any, index: int) -> None:
            calls.forward(workload, self.model, calls.split(batch)[0])

        def configure_optimizers(self) -> Any:
            return calls.make_optimizer(workload, self.model)

        def transfer_batch_to_device(self, batch: int, device: Any, index: int) -> Any:
            return example.sized(batch, device)

        def train_dataloader(self) -> Any:
            return DataLoader(range(100_000), batch_size=self.batch_size, collate_fn=len)  # type: ignore[arg-type]

        val_dataloader = train_dataloader

    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 1}
    precision = "bf16-mixed" if row["precision"] == "bf16" else "32-true"
    where = "gpu" if row["device"] == "cuda" else "cpu"
    trainer = lit.Trainer(accelerator=where, devices=1, precision=precision, enable_model_summary=False, **options)
    method = "fit" if row["mode"] == "train" else "validate"
    # Its own bound of 8192 is lifted; that it takes 5 % off what it found is left as it is.
    found = Tuner(trainer).scale_batch_size(Module(), mode="binsearch", method=method, max_val=2**20)
    return {"max_batch": found, "seconds": perf_counter() - began}


def accelerate(row: Row, auto: int, emit: Any) -> Row:
    """accelerate's finder, which only goes down, from the power of two above the answer."""
    import torch
    from accelerate.utils import find_executable_batch_size  # type: ignore[import-not-found,unused-ignore]

    from stoker.workload import calls

    began = perf_counter()
    workload, model, example = _peer_parts(row, emit)
    device = torch.device(row["device"])
    model = model.to(device).train(row["mode"] == "train")
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=row["precision"] == "bf16")

    def step(batch_size: int, optimizer: Any) -> None:
        inputs, target = calls.split(example.sized(batch_size, device))
        if optimizer is None:
            with torch.inference_mode(), autocast:
                calls.forward(workload, model, inputs)
            return
        with autocast:
            loss = calls.loss_of(workload, calls.forward(workload, model, inputs), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    @find_executable_batch_size(starting_batch_size=2 ** math.ceil(math.log2(auto + 1)))  # type: ignore[untyped-decorator,unused-ignore]
    def run(batch_size: int) -> int:
        optimizer = calls.make_optimizer(workload, model) if row["mode"] == "train" else None
        for _ in range(3):
            step(batch_size, optimizer)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return batch_size

    return {"max_batch": run(), "seconds": perf_counter() - began}


# ---------------------------------------------------------------- many rows


def side_by_side(rows: list[Row], deadline: float, keep: Any, *, peers: bool, thesis: bool) -> None:
    """As many rows at once as the card holds; new ones are begun until the time is up."""
    waiting, free, at_once = list(rows), CARD_GIB, PEERS_AT_ONCE if peers else AT_ONCE
    running: dict[Future[Row], int] = {}
    pool = ProcessPoolExecutor(at_once, mp_context=get_context("spawn"))
    try:
        while waiting or running:
            for row in list(waiting):
                at_most = 3 * (row["gib"] + 1)  # `auto` tries so many sizes at once where it finds room for them
                need = at_most if at_most <= CARD_GIB and not thesis else row["gib"] + 2
                left = deadline - time.monotonic() - _ROW_S
                if need <= free and len(running) < at_once and left > 0:
                    waiting.remove(row)
                    if thesis:
                        future = pool.submit(by_thesis, row)
                    else:
                        future = pool.submit(answer, row, peers=peers, budget_s=left)
                    running[future] = need
                    free -= need
            if not running or time.monotonic() > deadline:
                break
            done, _ = wait(running, timeout=5, return_when=FIRST_COMPLETED)
            for future in done:
                free += running.pop(future)
                keep(future)
    finally:
        for process in list(pool._processes.values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)


def line(row: Row) -> str:
    auto, truth_ = row["auto"], row.get("truth", {})
    told = auto["predicted_batch"]
    edge = truth_.get("edge", 0)
    error = f"{told / edge - 1:+.1%}" if told and edge else "-"
    parts = [f"{row['key']:52s} edge {edge} first {truth_.get('first_failed')} last {truth_.get('last_ran')}"]
    parts.append(
        f"auto {auto['max_batch']} ({auto['seconds']:.1f} s, {len(auto['probes'])} tries) trace {told} {error}"
    )
    parts += [
        f"{name} {row[name].get('max_batch', row[name].get('problem', '')[:60])} ({row[name].get('seconds', 0):.1f} s)"
        for name in ("two-point", "doubling", "lightning", "accelerate")
        if name in row
    ]
    return "  ".join(parts)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--limit", type=float, default=480, help="seconds to stop after")
    parser.add_argument("--alone", action="store_true", help="rows with peers, one after another")
    parser.add_argument("--baselines", action="store_true", help="two-point and doubling, for rows without them")
    parser.add_argument("--more", action="store_true", help="the six models' other questions, with peers, side by side")
    parser.add_argument("--unseen", action="store_true", help="questions that no rule was made with in view")
    parser.add_argument("--only", default="", help="rows with this in their key")
    parser.add_argument("--try-out", action="store_true", help="two small questions on the host, to see that it works")
    parser.add_argument("--previous", type=Path, help="an earlier result file, whose rows are kept")
    options = parser.parse_args()
    deadline = time.monotonic() + options.limit
    kinds = [kind for kind in ("alone", "more", "unseen") if getattr(options, kind)]
    name = "-".join(["limit", *kinds])
    rows: list[Row] = []
    if options.previous and options.previous.exists():
        rows = json.loads(options.previous.read_text(encoding="utf-8"))["rows"]
    beside_peers = options.alone or options.more
    have = {row["key"] for row in rows if "lightning" in row or not beside_peers}

    def keep(future: Any) -> None:
        try:
            row = future.result() if isinstance(future, Future) else future
        except Exception as error:
            say(f"a row failed: {type(error).__name__}: {error}"[:300])
            return
        known = next((place for place, other in enumerate(rows) if other["key"] == row["key"]), len(rows))
        rows[known : known + 1] = [row]
        say(line(row))
        write(options.output, name, rows)

    asked_for = questions()
    if options.alone:
        asked_for = [question(model) for model in MODELS]
    if options.more:
        asked_for = more_questions()
    if options.unseen:
        asked_for = [question(model, gib, **more) for model, gib, more in UNSEEN]
    if options.try_out:
        small = question("mobilenet_v2", mode="infer")
        asked_for = [{**small, "gib": gib, "device": "cpu"} for gib in (0.2, 0.3)]
    asked_for = [row for row in asked_for if key(row) not in have and options.only in key(row)]
    if options.baselines:
        asked_for = [row for row in rows if "two-point" not in row and options.only in row["key"]]
    if options.alone:
        for row in asked_for:
            left = deadline - time.monotonic()
            if left > _ROW_S:
                keep(answer(row, peers=True, budget_s=left - _ROW_S))
    else:
        side_by_side(asked_for, deadline, keep, peers=beside_peers, thesis=options.baselines)
    say(f"{len(rows)} rows")


if __name__ == "__main__":
    import limit  # by its own name: what is sent to other processes has to be found there

    limit.main()
