"""Trials of real loaders in real child processes: what they measure, and what becomes of those that break."""

import os
import shutil
import subprocess
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import psutil
import pytest
import torch

import stoker
from stoker import Extent, Setting
from stoker.analysis.spans import steady, whole
from stoker.errors import InputError, MachineError
from stoker.process.tree import cpu_and_rss, family
from stoker.records import Task, WorkloadSpec, decode, encode
from tests.workloads.planted import READ_S, STEP_S, TRANSFORM_S, planted

HERE = Path(__file__).parents[1] / "workloads" / "planted.py"
FEW = Extent(batches=6, warmup=1)


def run(name: str, setting: Setting | None = None, extent: Extent = FEW, **options: Any) -> stoker.Trial:
    return stoker.profile(f"{HERE}:{name}", setting or Setting(batch_size=4), extent, **{"device": "cpu", **options})


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_planted_delays_are_found_where_they_were_planted(workers: int, tmp_path: Path) -> None:
    log = tmp_path / "spent"
    setting, extent = Setting(batch_size=4, num_workers=workers), Extent(batches=8, warmup=2)
    trial = stoker.profile(planted(log), setting, extent, device="cpu")
    assert trial.outcome == "done", trial.problem
    spent = [[float(seconds) for seconds in line.split()] for line in log.read_text().splitlines()]
    least_s = (4 * READ_S, 4 * TRANSFORM_S, STEP_S)
    for name, least, own in zip(("read", "transform", "step"), least_s, zip(*spent, strict=True), strict=True):
        # What the workload's own clock says, which on a busy machine is more than was planted; never less.
        assert min(own) >= least
        ratios = [seen / seconds for seen, seconds in zip(trial.stages[name].samples_s, own, strict=True)]
        assert min(ratios) >= 1 - 1e-6, name
        assert median(ratios) == pytest.approx(1, abs=0.02), name
    assert whole(trial).seconds == pytest.approx(trial.total_s, rel=0.01)
    assert set(trial.workers.worker) == (set(range(workers)) if workers else {-1})


def test_a_trial_keeps_its_samples_and_reads_back_whole() -> None:
    trial = run("plain", Setting(batch_size=4, num_workers=2))
    assert trial.outcome == "done", trial.problem
    assert trial.items == 28
    assert [len(trial.stages[name].samples_s) for name in ("wait", "copy", "forward", "collate")] == [7] * 4
    assert trial.first_batch_s == trial.stages["wait"].samples_s[0]
    assert trial.machine is not None
    assert decode(encode(trial), stoker.Trial) == trial
    span = steady(trial)
    assert span is not None
    assert span.batches == 6


def test_training_and_inference_have_their_stages() -> None:
    assert {"forward", "backward", "update"} <= set(run("plain").stages)
    assert not {"backward", "update"} & set(run("plain", mode="infer").stages)


def test_after_a_run_without_workers_some_are_started() -> None:
    trial = run("plain", mode="infer")
    assert {each.outcome for each in trial.started} == {"done"}
    assert trial.started[0].setting.num_workers == 1
    assert trial.started[1].setting.num_workers == 2
    assert [bool(each.task and each.task.options["sleep_s"]) for each in trial.started][:2] == [False, True]
    assert all(each.start_s > 0 for each in trial.started)
    assert run("plain", mode="infer", measure_start=False).started == ()
    assert run("plain", Setting(batch_size=4, num_workers=1), mode="infer").started == ()
    odd = f"{HERE.with_name('odd.py')}:dies_in_a_worker"
    trial = stoker.profile(odd, Setting(batch_size=4), FEW, device="cpu", mode="infer")
    assert (trial.outcome, trial.started) == ("done", ())


def test_the_setting_reaches_the_loop() -> None:
    setting = Setting(batch_size=5, num_workers=1, prefetch_factor=3, persistent_workers=True, precision="bf16")
    trial = run("plain", msgspec.structs.replace(setting, channels_last=True), Extent(batches=2, warmup=0, epochs=2))
    assert trial.outcome == "done", trial.problem
    assert trial.timeline.items == (5, 5, 5, 5)
    assert trial.timeline.batches == (2, 2)
    assert len(trial.timeline.epoch_s) == 2
    assert len(trial.stages["start"].samples_s) == 2


def test_out_of_order_a_slow_batch_holds_back_no_other() -> None:
    extent = Extent(batches=6, warmup=0)
    ordered = run("one_slow", Setting(batch_size=1, num_workers=2), extent, mode="infer")
    ready = run("one_slow", Setting(batch_size=1, num_workers=2, in_order=False), extent, mode="infer")
    assert ordered.workers.worker[:2] == (0, 1)
    assert ready.workers.worker[0] == 1, "the first worker has the slow one"
    assert sorted(ready.workers.worker)[0] == 0, "which comes too"


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_half_precision_runs_and_fp16_trains_with_a_scaler(precision: Any, mode: Any) -> None:
    trial = run(
        "plain", Setting(batch_size=4, precision=precision, channels_last=True, cudnn_benchmark=True), mode=mode
    )
    assert trial.outcome == "done", trial.problem
    assert ("update" in trial.stages) == (mode == "train")


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler here")
def test_a_compiled_model_runs() -> None:
    trial = run("plain", Setting(batch_size=4, compile=True), Extent(batches=3, warmup=1), mode="infer")
    assert trial.outcome == "done", trial.problem


def test_a_step_can_stand_in_for_a_model() -> None:
    trial = run("plain", device="sleep:20ms")
    assert all(sample >= 0.02 for sample in trial.stages["forward"].samples_s)
    trial = run("plain", device="sleep:2ms/item")
    assert all(sample >= 0.008 for sample in trial.stages["forward"].samples_s)


def test_epochs_run_the_whole_set_and_are_scored_after_each() -> None:
    trial = run("scored", extent=Extent(batches=None, epochs=2, validate=True))
    assert trial.outcome == "done", trial.problem
    assert trial.timeline.batches == (16, 16)
    assert len(trial.scores) == 2
    assert len(trial.stages["score"].samples_s) == 2
    assert whole(trial).seconds == pytest.approx(trial.total_s, rel=0.01)


def test_a_device_that_computes_nothing_cannot_be_scored() -> None:
    with pytest.raises(InputError, match="leave out --validate"):
        run("scored", extent=Extent(batches=2, validate=True), device="sleep:1ms")


def test_a_stream_is_cut_where_asked() -> None:
    assert run("stream", Setting(batch_size=4, num_workers=1)).items == 28


def test_samplers_of_the_workload_are_used() -> None:
    assert run("sampled").timeline.items == (4,)
    trial = run("batched")
    assert trial.timeline.items == (3, 2, 1)
    assert "batch_sampler" in trial.notes[0]


def test_a_batch_larger_than_the_set_runs_and_is_said() -> None:
    trial = run("plain", Setting(batch_size=1000))
    assert trial.items == 64
    assert any("larger than the set" in note for note in trial.notes)


def test_a_set_that_ends_early_is_said() -> None:
    trial = run("plain", Setting(batch_size=30))
    assert trial.items == 64
    assert any("ends after 3 batches" in note for note in trial.notes)


def test_batches_in_memory_are_given_in_turn_however_small_the_set() -> None:
    trial = run("plain", Setting(batch_size=30), extent=Extent(batches=5, warmup=2, source="memory"))
    assert trial.timeline.items == (30,) * 7
    assert any("2 batches kept in memory" in note for note in trial.notes)
    assert not any("ends after" in note for note in trial.notes)


def test_more_workers_than_cpus_run_and_are_said() -> None:
    trial = run("plain", Setting(batch_size=4, num_workers=(os.cpu_count() or 1) + 3))
    assert trial.outcome == "done"
    assert any("workers on" in note for note in trial.notes)


def test_what_is_asked_for_and_cannot_be_had_is_said() -> None:
    notes = run("plain", Setting(batch_size=4, persistent_workers=True)).notes
    assert any("persistent workers" in note for note in notes)


def test_gauges_are_read_beside_the_run() -> None:
    trial = run("planted", Setting(batch_size=8, num_workers=1), Extent(batches=12, warmup=0))
    assert trial.gauges["rss_bytes"].average > 50e6
    assert trial.gauges["processes"].maximum >= 2
    assert all(0 <= moment <= trial.total_s for moment in trial.gauges["rss_bytes"].times_s)


def test_processes_that_a_thread_started_are_found_by_a_thorough_look() -> None:
    started: list[subprocess.Popen[bytes]] = []
    over = threading.Event()

    def start() -> None:
        started.append(subprocess.Popen(["sleep", "30"]))
        over.wait(30)

    thread = threading.Thread(target=start)
    thread.start()
    direct = subprocess.Popen(["sleep", "30"])
    try:
        while not started:
            time.sleep(0.01)
        quick, thorough = set(family(os.getpid(), threads=None)), set(family(os.getpid()))
        assert {os.getpid(), direct.pid} <= quick
        assert thorough >= quick | {started[0].pid}
        cpu_s, rss = cpu_and_rss(os.getpid())
        assert cpu_s == pytest.approx(time.process_time(), abs=0.5)
        assert rss == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    finally:
        over.set()
        for process in (direct, *started):
            process.kill()
            process.wait()
        thread.join()


# ---------------------------------------------------------------- what breaks


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_raises_is_named_with_its_own_line(workers: int) -> None:
    trial = run("raises", Setting(batch_size=4, num_workers=workers), mode="infer")
    assert trial.outcome == "failed"
    assert trial.problem is not None
    assert "label 'cat' is not a number" in trial.problem.sentence
    assert "ValueError" in trial.problem.sentence
    assert "\n" not in trial.problem.sentence
    assert trial.problem.where is not None
    assert "planted.py" in trial.problem.where
    assert "__getitem__" in trial.problem.where
    assert "item 9" in (trial.problem.remedy or "")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_hangs_times_out_and_says_where(workers: int) -> None:
    trial = run("hangs", Setting(batch_size=4, num_workers=workers), mode="infer", timeout_s=4)
    assert trial.outcome == "timed_out"
    assert trial.problem is not None
    assert "__getitem__" in (trial.problem.where or "")


def test_a_killed_worker_is_a_crash_with_its_signal() -> None:
    trial = run("dies", Setting(batch_size=4, num_workers=2), mode="infer")
    assert trial.outcome == "crashed"
    assert trial.problem is not None
    assert "SIGKILL" in trial.problem.sentence


def test_a_bus_error_says_shared_memory() -> None:
    trial = run("dies_of_a_bus_error", Setting(batch_size=4, num_workers=1), mode="infer")
    assert trial.outcome == "crashed"
    assert trial.problem is not None
    assert "/dev/shm" in trial.problem.sentence


def test_the_trials_own_process_may_die_too() -> None:
    trial = run("dies", mode="infer")
    assert trial.outcome == "crashed"
    assert trial.problem is not None
    assert "SIGKILL" in trial.problem.sentence


def test_running_out_of_memory_is_an_outcome() -> None:
    trial = run("out_of_memory")
    assert trial.outcome == "oom"
    assert trial.problem is not None


def test_a_step_that_raises_is_not_taken_for_lack_of_memory() -> None:
    trial = run("bad_step")
    assert trial.outcome == "failed"
    assert trial.problem is not None
    assert "shapes do not match" in trial.problem.sentence
    assert "step_that_raises" in (trial.problem.where or "")


def test_an_empty_set_is_refused() -> None:
    with pytest.raises(InputError, match="empty"):
        run("empty")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"batch_size": 0}, "batch size must be at least 1, got 0"),
        ({"num_workers": -1}, "num workers must be at least 0, got -1"),
        ({"prefetch_factor": 0}, "prefetch factor must be at least 1, got 0"),
    ],
)
def test_settings_are_checked_where_they_are_made(values: dict[str, int], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Setting(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["tpu", "sleep:20parsecs", "sleep:1ms/batchlet"])
def test_a_device_that_is_none_is_refused(device: str) -> None:
    with pytest.raises(InputError):
        run("plain", device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this is about machines without a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(MachineError, match="no GPU"):
        run("plain", device="cuda")


# ---------------------------------------------------------------- nothing of the user's is changed


def test_objects_come_back_as_they_were() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 2), torch.nn.Dropout())
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rng = torch.get_rng_state()
    workload = stoker.Workload(
        model=model,
        dataset=torch.utils.data.TensorDataset(torch.randn(64, 8), torch.zeros(64, dtype=torch.long)),
        loss=torch.nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
    )
    rng = torch.get_rng_state()
    trial = stoker.profile(workload, Setting(batch_size=8), FEW, device="cpu")
    assert trial.outcome == "done", trial.problem
    assert "update" in trial.stages
    assert model.training
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_no_processes_are_left() -> None:
    run("plain")
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    run("hangs", Setting(batch_size=4, num_workers=2), mode="infer", timeout_s=3)
    run("raises", Setting(batch_size=4, num_workers=2), mode="infer")
    assert {process.pid for process in psutil.Process().children(recursive=True)} == before


def test_trials_of_two_threads_run_at_the_same_time() -> None:
    trials: list[stoker.Trial] = []
    extent = Extent(batches=60, warmup=0)

    def profile(batch_size: int) -> None:
        trials.append(run("plain", Setting(batch_size=batch_size), extent, device="sleep:50ms"))

    threads = [threading.Thread(target=profile, args=(size,)) for size in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {trial.outcome for trial in trials} == {"done"}
    assert {trial.setting.batch_size for trial in trials} == {2, 3}
    begins = [trial.when for trial in trials]
    ends = [trial.when + timedelta(seconds=trial.total_s) for trial in trials if trial.when is not None]
    assert max(begin for begin in begins if begin is not None) < min(ends), "the second began before the first was over"


# ---------------------------------------------------------------- what was asked, and when


def test_a_trial_says_what_was_asked_and_when_it_ran() -> None:
    before = datetime.now(UTC)
    setting, spec = Setting(batch_size=4), WorkloadSpec(spec=f"{HERE}:plain")
    trial = stoker.profile(spec, setting, FEW, mode="infer", device="cpu")
    asked = Task(kind="profile", workload=spec, mode="infer", device="cpu", setting=setting, extent=FEW)
    assert trial.task == asked
    assert trial.task.key() == asked.key()
    assert trial.setting != setting, "it says how the run was: without pinned memory"
    assert trial.when is not None
    assert before < trial.when < datetime.now(UTC)
    assert trial.when.utcoffset() == timedelta(0)
    assert 1 <= len(trial.reference_s) <= 5
    assert all(sample > 0 for sample in trial.reference_s)
    assert trial.interference is not None
    assert trial.idle_cpus is not None
    assert decode(encode(trial), stoker.Trial) == trial


@pytest.mark.parametrize(
    ("name", "workers"), [("raises", 0), ("raises", 2), ("dies", 0), ("dies", 2), ("out_of_memory", 0)]
)
def test_a_trial_that_breaks_says_it_too(name: str, workers: int) -> None:
    trial = run(name, Setting(batch_size=4, num_workers=workers), mode="infer")
    assert trial.outcome != "done"
    assert trial.task is not None
    assert trial.task.setting == Setting(batch_size=4, num_workers=workers)
    assert trial.when is not None
    assert trial.machine is not None
    assert trial.reference_s
    is_killed = name == "dies" and workers == 0
    assert (trial.interference is None) == is_killed, "only the process itself knows what it used"


def test_a_live_workload_has_a_task_without_a_name() -> None:
    dataset = torch.utils.data.TensorDataset(torch.randn(64, 8))
    workload = stoker.Workload(model=torch.nn.Linear(8, 2), dataset=dataset)
    trial = stoker.profile(workload, Setting(batch_size=8), FEW, device="cpu")
    assert trial.task is not None
    assert trial.task.workload is None
    with pytest.raises(InputError, match="live Workload"):
        trial.task.key()


# ---------------------------------------------------------------- cold and cached


def test_files_are_evicted_before_a_cold_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(24):
        (tmp_path / f"{number:02d}").write_bytes(os.urandom(65536))
    monkeypatch.setenv("STOKER_TEST_FILES", str(tmp_path))
    cold = run("files", extent=Extent(batches=4, warmup=0, source="cold"))
    assert cold.outcome == "done", cold.problem
    assert any("evicted" in note for note in cold.notes)
    assert cold.machine is not None
    assert cold.machine.storage is not None
    assert run("files", extent=Extent(batches=4, warmup=0, source="cached")).outcome == "done"


def test_batches_in_memory_leave_the_loader_out() -> None:
    trial = run("planted", extent=Extent(batches=5, warmup=0, source="memory"))
    assert trial.outcome == "done"
    assert "read" not in trial.stages
    assert trial.items == 20


def test_a_cold_run_of_unknown_files_says_how_to_name_them() -> None:
    with pytest.raises(InputError, match=r"Workload\(files="):
        run("plain", extent=Extent(batches=2, source="cold"))
