"""What only a GPU can show: every flag of a setting, running out of its memory, and the largest batch that was run."""

import json
import subprocess
import sys
from statistics import median
from typing import Any

import pytest
import torch

import stoker
from stoker import Extent, Setting
from stoker.analysis.spans import whole
from stoker.events import AnyEvent, Phase
from stoker.measure.session import trial_server
from stoker.process import child
from tests.workloads.nccl import one_nccl_rank

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

FEW = Extent(batches=4, warmup=2)


def run(mode: Any, extent: Extent = FEW, **setting: Any) -> stoker.Trial:
    source = stoker.WorkloadSpec(spec="resnet18", data="device")
    return stoker.profile(source, Setting(batch_size=16, **setting), extent, mode=mode, device="cuda")


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize(
    "setting",
    [
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"channels_last": True},
        {"cudnn_benchmark": True},
        {"compile": True},
        {"precision": "bf16", "channels_last": True, "cudnn_benchmark": True},
    ],
    ids=lambda setting: "+".join(setting),
)
def test_every_flag_runs_on_a_gpu(mode: Any, setting: dict[str, Any]) -> None:
    trial = run(mode, **setting)
    assert trial.outcome == "done", trial.problem
    assert trial.workload.device == "cuda:0"
    assert len(trial.stages["forward"].samples_s) == 6
    assert ("backward" in trial.stages) == (mode == "train")
    assert trial.peaks["allocated_bytes"] > 0


def test_half_precision_needs_less_memory() -> None:
    full, half = run("train"), run("train", precision="bf16")
    assert half.peaks["allocated_bytes"] < full.peaks["allocated_bytes"]


def test_running_out_of_device_memory_is_an_outcome() -> None:
    source = stoker.WorkloadSpec(spec="vit_l_16", data="device")
    trial = stoker.profile(source, Setting(batch_size=8192), Extent(batches=1, warmup=0), mode="train", device="cuda")
    assert trial.outcome == "oom", trial.problem
    assert trial.problem is not None
    assert "device memory" in trial.problem.sentence
    assert trial.problem.remedy


def test_gauges_of_the_gpu_are_read() -> None:
    trial = run("train", Extent(batches=400, warmup=2))
    assert {"gpu_utilisation", "gpu_memory_bytes"} <= set(trial.gauges)


def test_doctor_describes_the_gpu() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "stoker", "doctor", "--json"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    machine = json.loads(ran.stdout)
    assert machine["gpus"][0]["memory_total_bytes"] > 2**30
    assert machine["cuda"]["usable"]


# ---------------------------------------------------------------- the largest batch

MIB = 2**20
NET = stoker.WorkloadSpec(spec="resnet18", data="device")


def outcomes_of(found: stoker.Limit) -> dict[int, str]:
    return {probe.batch_size: probe.outcome for probe in found.probes}


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_auto_gives_a_size_that_ran_with_a_failure_right_above(mode: Any) -> None:
    found = stoker.limit(NET, gpu_memory="1GiB", mode=mode)
    tried = outcomes_of(found)
    assert found.ran
    assert tried[found.max_batch] == "done"
    above = [size for size, outcome in tried.items() if outcome == "oom" and size > found.max_batch]
    assert min(above) - found.max_batch <= max(1, int(0.01 * found.max_batch))
    assert found.comfortable_batch is None or found.comfortable_batch <= found.max_batch
    assert found.predicted_batch is not None


def test_search_and_auto_agree() -> None:
    auto, search = (stoker.limit(NET, gpu_memory="1GiB", method=method) for method in ("auto", "search"))
    assert auto.max_batch == pytest.approx(search.max_batch, rel=0.03)


def test_two_points_and_doubling_answer() -> None:
    two = stoker.limit(NET, gpu_memory="4GiB", method="two-point")
    assert [probe.batch_size for probe in two.probes] == [10, 50]
    assert len(two.probes[0].reserved_samples) == 20
    assert two.probes[1].input_bytes == 50 * 3 * 224 * 224 * 4
    assert two.probes[1].output_bytes == 50 * 1000 * 4
    assert stoker.limit(NET, gpu_memory="4GiB", method="two-point", gpus=2).max_batch == pytest.approx(
        2 * two.max_batch, abs=2
    )
    doubling = stoker.limit(NET, gpu_memory="4GiB", method="doubling")
    assert doubling.max_batch & (doubling.max_batch - 1) == 0


def test_advice_is_predicted_and_run() -> None:
    found = stoker.limit(NET, gpu_memory="8GiB", mode="infer", advise=True)
    primed, expandable = found.remedies
    assert primed.max_batch >= found.max_batch
    assert primed.predicted_batch is not None
    assert expandable.max_batch >= found.max_batch


def test_a_budget_beyond_the_card_is_refused() -> None:
    with pytest.raises(stoker.StokerError, match="was asked for"):
        stoker.limit(NET, gpu_memory="100TiB")


def test_a_model_too_large_for_its_budget_says_by_how_much() -> None:
    with pytest.raises(stoker.StokerError, match="not even a batch of 1"):
        stoker.limit(stoker.WorkloadSpec(spec="vit_l_16", data="device"), gpu_memory="1GiB", mode="train")


def test_a_live_model_comes_back_as_it_was() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64), torch.nn.AdaptiveAvgPool2d(1))
    model = torch.nn.Sequential(model, torch.nn.Flatten(), torch.nn.Linear(64, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = (torch.randn(4, 3, 64, 64, device="cuda"), torch.zeros(4, dtype=torch.long, device="cuda"))
    loss = torch.nn.CrossEntropyLoss()
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.backends.cudnn.benchmark = True
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = [{name: value.clone() for name, value in values.items()} for values in optimizer.state.values()]
    chance, allocated = torch.cuda.get_rng_state(), torch.cuda.memory_allocated()
    try:
        found = stoker.limit(model, batch, gpu_memory="1GiB", loss=loss, optimizer=optimizer)
        assert torch.backends.cudnn.benchmark
    finally:
        torch.backends.cudnn.benchmark = False
    assert found.ran
    assert outcomes_of(found)[found.max_batch] == "done"
    assert "oom" in outcomes_of(found).values()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for kept, values in zip(state, optimizer.state.values(), strict=True):
        assert all(torch.equal(value, kept[name]) for name, value in values.items())
    assert torch.equal(torch.cuda.get_rng_state(), chance)
    assert torch.cuda.memory_allocated() - allocated <= 80 * MIB, "what cuBLAS and cuDNN keep for good, and no more"


def test_a_live_model_whose_step_fails_comes_back_too() -> None:
    model = torch.nn.Linear(8, 8).cuda()
    before = model.weight.clone()
    with pytest.raises(stoker.StokerError, match="not for want of memory"):
        stoker.limit(model, torch.randn(4, 9, device="cuda"), gpu_memory="1GiB")
    assert torch.equal(model.weight, before)


def test_someone_else_on_the_card_is_taken_off() -> None:
    held = torch.empty(2 * 2**30, dtype=torch.uint8, device="cuda")
    found = stoker.limit(NET, gpu_memory="1GiB", mode="infer")
    free_bytes = {probe.free_bytes for probe in found.probes}
    assert max(free_bytes) < torch.cuda.get_device_properties(0).total_memory - held.numel()
    assert not any("took" in note for note in found.notes)


FILL = """
import sys, torch
torch.cuda.mem_get_info()
print("here", flush=True)
sys.stdin.readline()
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - 2**30, dtype=torch.uint8, device="cuda")
print("full", flush=True)
sys.stdin.readline()
"""


def test_someone_who_fills_the_card_during_the_search_is_named() -> None:
    asked: dict[str, Any] = {"gpu_memory": "4GiB", "mode": "infer", "method": "doubling"}
    alone = stoker.limit(NET, **asked)
    with subprocess.Popen(
        [sys.executable, "-c", FILL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        orders, answers = other.stdin, other.stdout
        assert orders is not None
        assert answers is not None
        said = [answers.readline()]

        def fill(event: AnyEvent) -> None:
            if isinstance(event, Phase) and event.name == "trying_batch" and len(said) == 1:
                print("now", file=orders, flush=True)
                said.append(answers.readline())

        found = stoker.limit(NET, **asked, on_event=fill)
        print("done", file=orders, flush=True)
    assert said == ["here\n", "full\n"]
    assert found.max_batch < alone.max_batch, "there was less room than was asked for"
    assert any("another process took" in note for note in found.notes), found.notes
    assert not any("another process took" in note for note in alone.notes)


def test_tune_keeps_within_the_memory_that_it_is_told() -> None:
    source = stoker.WorkloadSpec(spec="resnet18", data="tensors", items=256)
    plan = stoker.tune(source, gpu_memory="1GiB", mode="train", device="cuda", budget_s=10)
    most = stoker.limit(NET, gpu_memory="1GiB", mode="train").max_batch
    assert plan.batch_size <= most
    assert plan.measured is not None
    assert all(each.setting.batch_size <= most for each in plan.candidates)
    assert any(each.bound == "device_memory" for each in plan.ruled_out), plan.ruled_out


def test_updates_are_as_few_as_the_effective_batch_has_them() -> None:
    source = stoker.WorkloadSpec(spec="resnet18", data="tensors", items=256)
    each, gathered = (
        stoker.profile(
            source, Setting(batch_size=8, accumulate=batches), Extent(batches=8), mode="train", device="cuda"
        )
        for batches in (1, 4)
    )
    assert median(gathered.stages["update"].samples_s) < 0.5 * median(each.stages["update"].samples_s)
    plan = stoker.tune(source, global_batch=64, mode="train", device="cuda", budget_s=10)
    assert plan.batch_size * plan.accumulate == 64
    assert plan.measured is not None


SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    for (x,) in DataLoader(TensorDataset(torch.randn(2048, 2048)), 32, shuffle=True, num_workers=1):
        optimizer.zero_grad()
        net(x.cuda()).mean().backward()
        optimizer.step()
"""


def test_a_script_on_a_gpu_has_the_stages_of_the_gpu(tmp_path: Any) -> None:
    from stoker.integrations.script import ScriptRequest, run_script

    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    trial = run_script(ScriptRequest(command=(str(script),))).training
    assert trial is not None
    assert (trial.workload.device, len(trial.timeline.got_s)) == ("cuda", 64)
    spent = {name: stage.total_s for name, stage in trial.stages.items() if stage.clock == "loop"}
    assert min(spent[name] for name in ("copy", "forward", "backward", "update")) > 0
    assert sum(spent.values()) == pytest.approx(trial.total_s)
    assert trial.gauges["reserved_bytes"].maximum > 8 * 2048 * 2048 * 4


def pictures(folder: Any) -> str:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(3):
        own = folder / f"class{number}"
        own.mkdir(parents=True)
        for place in range(40):
            values = rng.normal(60 + 50 * number, 40, (64, 64, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(values).save(own / f"{place}.jpg")
    return str(folder)


def test_a_candidate_on_a_gpu_scores_as_on_the_cpu_and_knows_its_peak(tmp_path: Any) -> None:
    from stoker.ranking.candidate import run_candidate

    data = pictures(tmp_path / "birds")
    trials = {}
    for device in ("cpu", "cuda"):
        for part in ("full", "last:50%"):
            task = stoker.Task(
                kind="search",
                workload=stoker.WorkloadSpec(spec="resnet18", data=data),
                device=device,
                extent=Extent(batches=None),
                options={"part": part, "batch_size": "measured", "scores": "logme"},
            )
            trials[device, part] = run_candidate(task)
    assert [each.outcome for each in trials.values()] == ["done"] * 4, [each.problem for each in trials.values()]
    plain = trials["cpu", "full"].scores[0].value
    for each in trials.values():
        assert each.scores[0].value == pytest.approx(plain, rel=0.05)
    on_gpu = trials["cuda", "full"]
    assert on_gpu.peaks["allocated_bytes"] > 11_000_000 * 4
    assert on_gpu.batch_size >= 32
    assert sum(on_gpu.stages.copy_s) > 0
    assert (trials["cuda", "last:50%"].blocks_run or 0) < (trials["cuda", "last:50%"].blocks or 0)


def test_a_batch_that_does_not_fit_into_gpu_memory_is_run_in_halves(tmp_path: Any) -> None:
    from stoker.ranking.candidate import run_candidate

    torch.cuda.empty_cache()  # what earlier tests left there is given out without a look at the limit
    torch.cuda.set_per_process_memory_fraction(min(1.0, 6e8 / torch.cuda.get_device_properties(0).total_memory))
    try:
        task = stoker.Task(
            kind="search",
            workload=stoker.WorkloadSpec(spec="resnet18", data=pictures(tmp_path / "birds")),
            device="cuda",
            setting=Setting(batch_size=120),
            extent=Extent(batches=None),
            options={"scores": "logme"},
        )
        trial = run_candidate(task)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert (trial.outcome, trial.items) == ("done", 120), trial.problem
    assert trial.batch_size < 120
    assert "did not fit" in trial.setting_reason


# ---------------------------------------------------------------- ranks


def test_a_rank_under_nccl_has_its_exchange_apart() -> None:
    ended = child.run(one_nccl_rank, (8,), kind=stoker.Trial, server=trial_server())
    trial = child.value(ended)
    assert trial.outcome == "done", trial.problem
    assert len(trial.rank_logs) == 1
    assert {"forward", "backward", "exchange", "update"} <= set(trial.stages)
    assert len(trial.stages["exchange"].samples_s) == 10
    assert whole(trial).seconds == pytest.approx(trial.total_s, rel=0.01)
    assert sum(trial.stages["backward"].samples_s) > 0


def test_ranks_take_a_gpu_each() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(stoker.StokerError, match=f"{count + 1} ranks need {count + 1} GPUs, and here are {count}"):
        stoker.profile(NET, Setting(ranks=count + 1), FEW, mode="train")
    with pytest.raises(stoker.StokerError, match="leave out --device cuda:0"):
        stoker.profile(NET, Setting(ranks=2), FEW, mode="train", device="cuda:0")
    with pytest.raises(stoker.StokerError, match=f"over {count + 1} GPUs, and here are {count}"):
        stoker.profile(NET, Setting(ranks=count + 1, parallel="dp"), FEW, mode="train")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("parallel", ["ddp", "dp"])
def test_two_gpus_train_together(parallel: Any) -> None:
    trial = stoker.profile(NET, Setting(batch_size=16, ranks=2, parallel=parallel), FEW, mode="train")
    assert trial.outcome == "done", trial.problem
    assert len(trial.rank_logs) == (2 if parallel == "ddp" else 0)


def test_a_rank_holds_its_gradients_two_further_times() -> None:
    """By steps that ran under DistributedDataParallel, and by the trace of one."""
    gradients = 11_689_512 * 4
    alone, ranked = (stoker.limit(NET, gpu_memory="2GiB", mode="train", ranks=count) for count in (1, 2))
    assert ranked.ran
    assert ranked.max_batch < alone.max_batch
    assert ranked.predicted_batch == pytest.approx(ranked.max_batch, rel=0.08)
    ones, others = (stoker.limit(NET, mode="train", method="two-point", ranks=count).probes[0] for count in (1, 2))
    assert others.peak_bytes - ones.peak_bytes == pytest.approx(2 * gradients, rel=0.15)
