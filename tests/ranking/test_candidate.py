"""One candidate of a search: its features, its parts, its scores, and what is said when it cannot be run."""

import functools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import timm
import torch
from torch import nn

from stoker.ranking import supply
from stoker.ranking.candidate import run_candidate
from stoker.ranking.features import FeatureTap
from stoker.ranking.resampling import score_model
from stoker.records import CandidateTrial, Extent, Setting
from stoker.workload.checkpoint import read
from stoker.workload.data.images import decode
from stoker.workload.data.open import open_data
from tests.ranking.cases import NET, asked, pictures, snapshot, text_model, texts, workloads


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine, threads of such small models wait for each other much longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("images") / "birds")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return snapshot(tmp_path_factory.mktemp("snapshots") / "one.safetensors")


@pytest.fixture(scope="module")
def full(images: Path, weights: Path) -> CandidateTrial:
    return run_candidate(asked(NET, images, weights=weights, scores="nleep,logme,leep"))


def values(trial: CandidateTrial) -> dict[str, float]:
    assert trial.outcome == "done", trial.problem
    return {each.score: each.value for each in trial.scores}


def test_a_candidate_scores_what_a_plain_loop_over_its_model_scores(
    images: Path, weights: Path, full: CandidateTrial
) -> None:
    model: Any = timm.create_model("test_resnet", num_classes=5).eval()
    model.load_state_dict(read(weights))
    data: Any = timm.data
    transform = data.create_transform(**data.resolve_data_config({}, model=model))
    files = sorted(images.rglob("*.jpg"))
    batch = torch.stack([transform(decode(file.read_bytes(), str(file))) for file in files])
    with torch.no_grad():
        features = model.forward_head(model.forward_features(batch), pre_logits=True)
        probabilities = torch.softmax(model(batch), dim=1)
    labels = [file.parent.name for file in files]
    plain = score_model(
        labels, features=features.numpy(), source_probabilities=probabilities.numpy(), scores=("logme", "leep")
    )
    assert full.feature_size == features.shape[1]
    for each in plain:
        assert values(full)[each.score] == pytest.approx(each.value, rel=1e-3)


def test_a_trial_has_the_time_of_every_stage(full: CandidateTrial, weights: Path) -> None:
    stages = full.stages
    assert (full.items, full.skipped, full.classes, full.labels) == (24, 0, 3, "classes")
    assert sum(stages.batch_items) == 24
    assert len(stages.load_s) == len(stages.copy_s) == len(stages.infer_s) == len(stages.batch_items)
    assert min(stages.read_s[0], stages.build_s, *stages.infer_s, *stages.score_s.values()) > 0
    assert stages.read_resident is not None
    assert 0 <= stages.read_resident <= 1
    assert sum(stages.totals_s.values()) == pytest.approx(sum(stages.groups_s.values()))
    assert sum(stages.totals_s.values()) <= full.total_s
    assert (full.weights, full.weights_file, full.static.accuracy) == ("file", str(weights), None)
    assert full.static.parameters == full.parameters
    assert full.setting_reason
    assert full.batch_size >= 1


@pytest.mark.parametrize("part", ["last:50%", "last:1", "last:25%:parameters", "last:2:layers"])
def test_a_part_on_stored_outputs_scores_as_the_whole_model(
    part: str, images: Path, weights: Path, full: CandidateTrial
) -> None:
    trial = run_candidate(asked(NET, images, weights=weights, scores="nleep,logme,leep", part=part))
    assert values(trial) == pytest.approx(values(full), rel=1e-3)
    assert trial.blocks is not None
    assert trial.blocks_run is not None
    assert 1 <= trial.blocks_run < trial.blocks
    assert sum(trial.stages.prefix_s) > 0
    assert sum(trial.stages.batch_items) == 24


def test_a_joint_model_runs_its_heads_on_one_prefix(images: Path, weights: Path, full: CandidateTrial) -> None:
    trial = run_candidate(asked(NET, images, weights=weights, scores="nleep,logme,leep", part="joint:3:last:2"))
    assert values(trial) == pytest.approx(values(full), rel=1e-3), "the first head is the model's own"
    assert trial.blocks is not None
    assert trial.blocks_run == trial.blocks - 2 + 3 * 2


def test_states_that_do_not_fit_into_memory_are_files_that_are_gone_afterwards(
    images: Path, weights: Path, full: CandidateTrial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stoker.ranking import states

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen: list[int] = []
    read_state = states._read

    def noted(path: Path) -> Any:
        seen.append(path.stat().st_size)
        return read_state(path)

    monkeypatch.setattr(states, "_read", noted)
    trial = run_candidate(asked(NET, images, weights=weights, scores="logme", part="last:50%"))
    assert values(trial)["logme"] == pytest.approx(values(full)["logme"], rel=1e-3)
    assert min(seen) > 0, "no host memory was allowed, so every batch was a file"
    assert list(tmp_path.iterdir()) == []


def test_a_fixed_setting_and_extent_are_kept(images: Path) -> None:
    setting = Setting(batch_size=4, num_workers=1)
    extent = Extent(batches=2, warmup=1)
    trial = run_candidate(asked(NET, images, scores="", batch_size=4, setting=setting, extent=extent))
    assert (trial.outcome, trial.stages.batch_items, trial.scores) == ("done", (4, 4, 4), ())
    assert (trial.batch_size, trial.num_workers, trial.setting_reason) == (4, 1, "as asked")
    memory = run_candidate(
        asked(
            NET,
            images,
            scores="",
            batch_size=4,
            setting=Setting(batch_size=4),
            extent=Extent(batches=None, source="memory"),
        )
    )
    assert (memory.items, memory.items_from) == (24, "memory")


def test_random_labels_are_as_many_classes_as_asked(images: Path) -> None:
    trial = run_candidate(asked(NET, images, labels="random", classes=6, scores="logme"))
    assert (trial.outcome, trial.classes, trial.labels) == ("done", 6, "random")


def test_synthetic_data_has_random_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supply, "open_data", functools.partial(open_data, files=20))
    trial = run_candidate(asked(NET, "tensors", items=12, classes=2, scores="linear"))
    assert (trial.outcome, trial.items, trial.classes, trial.labels) == ("done", 12, 2, "random"), trial.problem
    assert (trial.weights, trial.image_size) == ("random", 160)


# ---------------------------------------------------------------- texts and workloads


def test_texts_are_read_with_the_tokenizer_beside_the_candidate(tmp_path: Path) -> None:
    data = texts(tmp_path / "reviews")
    trial = run_candidate(asked(f"hf/{text_model(tmp_path / 'bert')}", data))
    assert (trial.outcome, trial.items, trial.feature_size) == ("done", 16, 16), trial.problem
    part = run_candidate(asked(f"hf/{tmp_path / 'bert'}", data, part="last:1"))
    assert values(part) == pytest.approx(values(trial), rel=1e-2)


def test_texts_without_a_tokenizer_are_refused_with_a_sentence(tmp_path: Path) -> None:
    model = text_model(tmp_path / "bert", tokenizer=False)
    assert "has no tokenizer files beside it" in problem(asked(f"hf/{model}", texts(tmp_path / "reviews")))


def test_a_workload_of_the_users_is_a_candidate_with_its_own_data(tmp_path: Path) -> None:
    mine = workloads(tmp_path)
    trial = run_candidate(asked(f"{mine}:plain", None))
    assert (trial.outcome, trial.items, trial.feature_size, trial.weights) == ("done", 40, 5, "workload")
    stream = run_candidate(asked(f"{mine}:stream", None))
    assert (stream.items, stream.labels_digest) == (40, trial.labels_digest)
    assert values(stream) == pytest.approx(values(trial), rel=1e-3)
    few = run_candidate(asked(f"{mine}:stream", None, items=10))
    assert few.items == 10


def problem(task: object) -> str:
    trial = run_candidate(task)  # type: ignore[arg-type]
    assert trial.outcome == "failed"
    assert trial.problem is not None
    return trial.problem.sentence


def test_labels_that_are_no_classes_are_refused(tmp_path: Path) -> None:
    mine = workloads(tmp_path)
    assert "gives no class number for each item" in problem(asked(f"{mine}:numbers", None))
    assert "all of one class" in problem(asked(f"{mine}:one_class", None))
    assert "no such thing" in problem(asked(f"{mine}:raises", None))


# ---------------------------------------------------------------- bad input


def test_images_without_labels_or_with_one_class_are_refused(tmp_path: Path) -> None:
    loose = pictures(tmp_path / "loose") / "class0"
    assert "no class folders" in problem(asked(NET, loose))
    assert "has one class (class0)" in problem(asked(NET, pictures(tmp_path / "one", classes=1)))
    assert "there is no folder" in problem(asked(NET, tmp_path / "nowhere"))
    assert "3 classes, and 7 were asked for" in problem(asked(NET, tmp_path / "loose", classes=7))


def test_a_corrupt_image_is_left_out_and_counted(tmp_path: Path) -> None:
    data = pictures(tmp_path / "birds")
    (data / "class1" / "3.jpg").write_bytes(b"\xff\xd8 this is no picture")
    trial = run_candidate(asked(NET, data))
    assert (trial.outcome, trial.items, trial.skipped) == ("done", 23, 1)
    for file in data.rglob("*.jpg"):
        file.write_bytes(b"")
    assert "none of 24 could be read" in problem(asked(NET, data))


def test_weights_of_another_architecture_are_refused(images: Path, weights: Path) -> None:
    sentence = problem(asked("timm/test_vit", images, weights=weights))
    assert weights.name in sentence
    assert "another model" in sentence


class Payload:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_a_pickle_that_is_no_state_dict_is_never_unpickled(images: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    plain, saved = tmp_path / "plain.pt", tmp_path / "saved.pt"
    plain.write_bytes(pickle.dumps(Payload(trap)))
    torch.save({"weights": Payload(trap)}, saved)
    for file in (plain, saved):
        assert file.name in problem(asked(NET, images, weights=file))
    assert not trap.exists()


# ---------------------------------------------------------------- features


class Pooled(nn.Module):
    """A convolution as head, as in SqueezeNet."""

    def __init__(self, head: nn.Module | None) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 8, 3), head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        return x.mean((2, 3)) if self.head is None else self.head(x).mean((2, 3))


@pytest.mark.parametrize("head", [nn.Conv2d(8, 4, 1), None])
def test_features_are_what_the_head_takes_or_the_output_of_a_model_without_one(head: nn.Module | None) -> None:
    model = Pooled(head).eval()
    tap = FeatureTap(model, convolution_head=head is not None)
    for _ in range(2):
        x = torch.randn(5, 3, 8, 8)
        with torch.no_grad(), tap.watching():
            output = model(x)
        features, outputs = tap.take(output)
        with torch.no_grad():
            expected = model.body(x).mean((2, 3))
        np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-6)
        assert (outputs is None) == (head is None)


def test_a_trial_is_a_document(full: CandidateTrial) -> None:
    from stoker.records import parse
    from stoker.records.documents import labelled

    document = labelled(full, msgspec.to_builtins(full))
    assert parse(msgspec.json.encode(document)) == full
