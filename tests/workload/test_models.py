"""Models by name: every one builds, each family runs, and a wrong name or weights file says what is wrong."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from stoker.errors import InputError
from stoker.workload import calls, models
from stoker.workload.workload import Workload

SEEDS = [
    *(f"resnet{depth}" for depth in (18, 34, 50, 101, 152)),
    *("mobilenet_v2", "efficientnet_v2_s", "efficientnet_v2_l", "vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32"),
    *("alexnet", "densenet201", "r3d_18", "hf/bert-base-uncased", "hf/roberta-base", "timm/convnext_tiny"),
]
PARAMETERS = {
    "resnet50": 25_557_032,
    "mobilenet_v2": 3_504_872,
    "densenet201": 20_013_928,
    "vit_l_32": 306_535_400,
    "r3d_18": 33_371_472,
    "hf/bert-base-uncased": 109_483_778,
    "hf/roberta-base": 124_647_170,
}


def build_without_memory(name: str, **options: Any) -> nn.Module:
    with torch.device("meta"):
        return models.build(name, **options)


def as_workload(name: str) -> Workload:
    kind = models.describe(name)
    loss = nn.CrossEntropyLoss() if kind.trainable else None
    return Workload(model=nn.Identity(), dataset=[0], loss=loss, forward=models.forward_of(kind))


def run(name: str, model: nn.Module, inputs: Any) -> Any:
    with torch.inference_mode():
        return calls.forward(as_workload(name), model.eval(), inputs)


@pytest.fixture
def tiny_bert(tmp_path: Path) -> str:
    return hf_folder(tmp_path / "tiny-bert", "bert", hidden_size=16, num_hidden_layers=1, num_attention_heads=2)


def hf_folder(path: Path, model_type: str, **config: Any) -> str:
    path.mkdir()
    sizes = {"vocab_size": 50, "intermediate_size": 32}
    (path / "config.json").write_text(json.dumps({"model_type": model_type, **sizes, **config}))
    return f"hf/{path}"


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("name", SEEDS)
def test_every_model_of_the_seeds_builds(name: str) -> None:
    model = build_without_memory(name)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == PARAMETERS.get(name, count) > 1_000_000
    assert models.describe(name).trainable


def test_everything_that_torchvision_lists_has_a_kind() -> None:
    kinds = [models.describe(name) for name in torchvision.models.list_models()]
    assert {kind.family for kind in kinds} == {"image", "video", "segmentation", "detection", "flow"}
    assert {kind.name for kind in kinds if kind.image_size == 299} == {"inception_v3", "quantized_inception_v3"}
    assert {kind.data for kind in kinds if kind.family == "video"} == {"video"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("r3d_18", {"family": "video", "data": "video", "image_size": 112, "classes": 400}),
        ("hf/bert-base-uncased", {"family": "text", "data": "text", "pad_id": 0, "max_tokens": 512}),
        ("hf/roberta-base", {"family": "text", "pad_id": 1, "max_tokens": 512, "vocabulary": 50265}),
        ("hf/FacebookAI/roberta-large", {"family": "text", "pad_id": 1}),
        ("hf/gpt2", {"family": "text", "pad_id": 50256, "max_tokens": 1024}),
        ("timm/vit_base_patch16_384", {"family": "image", "image_size": 384, "classes": 1000}),
        ("timm/convnext_tiny.fb_in1k", {"family": "image", "image_size": 224}),
        ("ResNet50", {"name": "resnet50", "family": "image", "image_size": 224, "classes": 1000}),
    ],
)
def test_a_kind_says_what_the_model_takes(name: str, expected: dict[str, Any]) -> None:
    kind = models.describe(name)
    assert {key: getattr(kind, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("resnet5", "no model is called 'resnet5'; did you mean resnet"),
        ("vit_b16", "did you mean vit_b_16"),
        ("zzzz", "no model is called 'zzzz'; torchvision's models go by"),
        ("tim/resnet18", "no model is called 'tim/resnet18'"),
        ("timm/convnxt_tiny", "timm has no model called 'convnxt_tiny'; did you mean timm/convnext_tiny"),
        ("timm/resnet18.nobody", r"timm has no 'resnet18\.nobody'; it has: resnet18\."),
        ("hf/bert-base-uncsed", "near it are: hf/bert-base-uncased"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest(name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        models.describe(name)
    assert "\n" not in str(caught.value)


def test_torchvision_names_need_no_other_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "optional", lambda *_, **__: pytest.fail("an optional package was imported"))
    models.describe("resnet18")
    with pytest.raises(InputError):
        models.describe("resnet_18_")


# ---------------------------------------------------------------- each family runs


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("squeezenet1_1", (2, 3, 64, 64)),
        ("quantized_shufflenet_v2_x0_5", (2, 3, 64, 64)),
        ("r3d_18", (2, 3, 4, 32, 32)),
        ("timm/test_resnet", (2, 3, 64, 64)),
    ],
)
def test_classifiers_give_a_row_an_item(name: str, shape: tuple[int, ...]) -> None:
    output = run(name, models.build(name), torch.rand(shape))
    assert output.shape == (2, models.describe(name).classes)


def test_segmentation_gives_a_mapping() -> None:
    output = run("lraspp_mobilenet_v3_large", models.build("lraspp_mobilenet_v3_large"), torch.rand(2, 3, 64, 64))
    assert calls.logits_of(output).shape == (2, 21, 64, 64)


def test_detection_is_given_a_list() -> None:
    name = "ssdlite320_mobilenet_v3_large"
    output = run(name, models.build(name), torch.rand(2, 3, 64, 64))
    assert [set(found) >= {"boxes", "labels"} for found in output] == [True, True]


def test_flow_is_given_two_frames() -> None:
    output = run("raft_small", models.build("raft_small"), torch.rand(2, 3, 128, 128))
    assert output[-1].shape == (2, 2, 128, 128)


def test_auxiliary_heads_train() -> None:
    workload, model = as_workload("googlenet"), models.build("googlenet", classes=5).train()
    loss = calls.loss_of(workload, calls.forward(workload, model, torch.rand(2, 3, 64, 64)), torch.tensor([0, 4]))
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters()), "the auxiliary heads learn too"


@pytest.mark.parametrize("model_type", ["bert", "roberta", "gpt2"])
def test_texts_train(tmp_path: Path, model_type: str) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    if model_type == "gpt2":
        sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2}
    name = hf_folder(tmp_path / model_type, model_type, **sizes)
    workload, model = as_workload(name), models.build(name, least_classes=4).train()
    ids = torch.tensor([[5, 6, 7], [5, 6, models.describe(name).pad_id or 0]])
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([3, 0])}
    inputs, target = calls.split(batch)
    output = calls.forward(workload, model, inputs)
    assert calls.logits_of(output).shape == (2, 4)
    calls.loss_of(workload, output, target).backward()


def test_an_image_model_of_transformers_takes_images(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    name = hf_folder(tmp_path / "tiny-vit", "vit", **sizes)
    kind = models.describe(name)
    assert (kind.family, kind.data, kind.image_size) == ("image", "jpeg", 32)
    assert calls.logits_of(run(name, models.build(name, classes=3), torch.rand(2, 3, 32, 32))).shape == (2, 3)


def test_a_folder_that_transformers_cannot_use_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no configuration that transformers can use"):
        models.describe(f"hf/{tmp_path}")
    with pytest.raises(InputError, match="which transformers has no text or image classifier for"):
        models.describe(hf_folder(tmp_path / "speech", "encodec"))


# ---------------------------------------------------------------- heads and weights


def head_of(model: nn.Module) -> int:
    return [module for module in model.modules() if isinstance(module, nn.Linear)][-1].out_features


def test_a_head_is_asked_for_or_grows_to_fit_the_data() -> None:
    assert head_of(build_without_memory("resnet18")) == 1000
    assert head_of(build_without_memory("resnet18", classes=7)) == 7
    assert head_of(build_without_memory("resnet18", least_classes=7)) == 1000
    assert head_of(build_without_memory("resnet18", least_classes=1200)) == 1200
    with pytest.raises(InputError, match="raft_small cannot have 3 classes"):
        models.build("raft_small", classes=3)


NAME = "shufflenet_v2_x0_5"


@pytest.fixture(scope="module")
def donor() -> nn.Module:
    return models.build(NAME, classes=9)


def same_weights(model: nn.Module, donor: nn.Module) -> bool:
    theirs = donor.state_dict()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("wrap", ["plain", "state_dict", "model", "module.", "_orig_mod.", "lightning"])
def test_weights_load_however_they_were_saved(tmp_path: Path, donor: nn.Module, wrap: str) -> None:
    state: Any = donor.state_dict()
    if wrap.endswith("."):
        state = {wrap + name: tensor for name, tensor in state.items()}
    elif wrap == "lightning":
        state = {"epoch": 3, "state_dict": {f"model.{name}": tensor for name, tensor in state.items()}}
    elif wrap != "plain":
        state = {wrap: state, "epoch": 3}
    torch.save(state, tmp_path / "weights.pt")
    model = models.build(NAME, weights=tmp_path / "weights.pt", least_classes=9)
    assert same_weights(model, donor)


def test_safetensors_load(tmp_path: Path, donor: nn.Module) -> None:
    save_file(donor.state_dict(), tmp_path / "weights.safetensors")
    assert same_weights(models.build(NAME, weights=tmp_path / "weights.safetensors", classes=9), donor)


def test_names_of_older_files_are_understood() -> None:
    from stoker.workload import checkpoint

    model = build_without_memory("densenet121")
    old = {
        name.replace("norm1.", "norm.1.").replace("conv2.", "conv.2."): tensor
        for name, tensor in model.state_dict().items()
    }
    assert set(old) != set(model.state_dict())
    assert set(checkpoint.rename(old, model)) == set(model.state_dict())


def test_a_base_model_without_a_head_loads_and_says_so(tmp_path: Path, tiny_bert: str) -> None:
    base: Any = models.build(tiny_bert)
    torch.save({**base.bert.state_dict(), "cls.predictions.bias": torch.zeros(3)}, tmp_path / "base.bin")
    with pytest.warns(UserWarning, match=r"base\.bin has no weights for classifier\.weight, classifier\.bias"):
        model: Any = models.build(tiny_bert, weights=tmp_path / "base.bin")
    assert same_weights(model.bert, base.bert)


class Attack:
    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)

    def __init__(self, target: Path) -> None:
        self.target = target


def test_a_file_that_would_run_code_does_not(tmp_path: Path) -> None:
    torch.save({"fc.weight": Attack(tmp_path / "owned")}, tmp_path / "evil.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Attack(tmp_path / "owned"), protocol=2))
    for name in ("evil.pt", "old.pt"):
        with pytest.raises(InputError, match=r"was not loaded, because it holds more than tensors \(posix\.mkdir\)"):
            models.build(NAME, weights=tmp_path / name)
    assert not (tmp_path / "owned").exists()


def save(path: Path, value: Any) -> Path:
    torch.save(value, path)
    return path


def test_weights_that_do_not_fit_are_told_in_one_sentence(tmp_path: Path, donor: nn.Module) -> None:
    (tmp_path / "noise.pt").write_bytes(b"this is not a checkpoint")
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "noise.safetensors").write_bytes(b"nor is this")
    state = donor.state_dict()
    lacking = {name: tensor for name, tensor in state.items() if not name.startswith("conv5")}
    wide = {**state, "conv1.0.weight": torch.zeros(24, 3, 5, 5)}
    for path, sentence in (
        (tmp_path / "nowhere.pt", r"nowhere\.pt does not exist"),
        (tmp_path, "is a folder; name the file in it"),
        (tmp_path / "noise.pt", "is not a file that torch.save wrote, or it is damaged"),
        (tmp_path / "empty.pt", "is not a file that torch.save wrote, or it is damaged"),
        (tmp_path / "noise.safetensors", "is not a safetensors file"),
        (save(tmp_path / "list.pt", [1, 2]), "holds no state dict; save one with"),
        (save(tmp_path / "none.pt", {}), "holds no state dict; save one with"),
        (save(tmp_path / "lacking.pt", lacking), r"does not fit shufflenet_v2_x0_5: it lacks conv5\.0\.weight"),
        (save(tmp_path / "extra.pt", {**state, "x": torch.zeros(1)}), "it has x, which the model does not"),
        (save(tmp_path / "wide.pt", wide), r"conv1\.0\.weight is \(24, 3, 5, 5\) in the file and \(24, 3, 3, 3\)"),
        (save(tmp_path / "other.pt", nn.Linear(2, 2).state_dict()), "holds another model's weights"),
    ):
        with pytest.raises(InputError, match=sentence) as caught:
            models.build(NAME, weights=path)
        assert "\n" not in str(caught.value)


def test_a_head_of_too_few_classes_is_told(tmp_path: Path, donor: nn.Module) -> None:
    path = save(tmp_path / "nine.pt", donor.state_dict())
    with pytest.raises(InputError, match="has a head of 9 classes, but 10 were asked for"):
        models.build(NAME, weights=path, classes=10)
    with pytest.raises(InputError, match="has a head of 9 classes, but the data has 10"):
        models.build(NAME, weights=path, least_classes=10)
