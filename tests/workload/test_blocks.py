"""Models in blocks: every architecture gives the same bits in pieces, and what cannot be split runs whole."""

import copy
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import timm
import torch
import torchvision.models as tv
import transformers
from torch import Tensor, nn
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

from stoker.errors import InputError
from stoker.workload.blocks import PARTS, Blocks, compose, cut, describe, joint, parse_part, run, split

TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
}
DISTILLED: dict[str, Any] = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64, "vocab_size": 100}


EAGER: dict[str, Any] = {"attn_implementation": "eager"}


def images(size: int = 32, items: int = 2) -> Tensor:
    return torch.randn(items, 3, size, size, generator=torch.Generator().manual_seed(0))


def texts(items: int = 4, *, padded: bool = True) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(items, 12, dtype=torch.long)
    if padded:
        mask[0, 5:], mask[-1, 9:] = 0, 0
    return {"input_ids": torch.randint(3, 100, (items, 12), generator=generator), "attention_mask": mask}


def swin_v2() -> Any:
    options: dict[str, Any] = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2}
    return SwinTransformer(
        patch_size=[4, 4], embed_dim=24, depths=[2, 2, 2], num_heads=[2, 4, 8], window_size=[4, 4], **options
    )


def swin() -> Any:
    return SwinTransformer(patch_size=[4, 4], embed_dim=24, depths=[2, 2, 2], num_heads=[2, 4, 8], window_size=[4, 4])


def vit() -> Any:
    return tv.VisionTransformer(
        image_size=32, patch_size=8, num_layers=4, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=7
    )


# name: how it is made, its example, the least number of blocks
ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], Any, int]] = {
    "resnet18": (tv.resnet18, images(), 10),
    "resnet50": (tv.resnet50, images(), 18),
    "mobilenet_v2": (tv.mobilenet_v2, images(), 20),
    "mobilenet_v3_small": (tv.mobilenet_v3_small, images(), 15),
    "efficientnet_b0": (tv.efficientnet_b0, images(), 19),
    "efficientnet_v2_s": (tv.efficientnet_v2_s, images(), 43),
    "vit": (vit, images(), 6),
    "alexnet": (tv.alexnet, images(64), 8),
    "vgg11": (functools.partial(tv.vgg11, init_weights=False), images(), 11),
    "densenet121": (tv.densenet121, images(), 63),
    "convnext_tiny": (tv.convnext_tiny, images(), 23),
    "swin": (swin, images(), 10),
    "swin_v2": (swin_v2, images(), 10),
    "r3d_18": (tv.video.r3d_18, torch.randn(2, 3, 4, 16, 16), 10),
    "r2plus1d_18": (tv.video.r2plus1d_18, torch.randn(2, 3, 4, 16, 16), 10),
    "timm resnet10t": (lambda: timm.create_model("resnet10t"), images(), 6),
    "timm resnetv2": (lambda: timm.create_model("resnetv2_18"), images(), 10),
    "timm mobilenetv3": (lambda: timm.create_model("mobilenetv3_small_050"), images(), 12),
    "timm efficientnet": (lambda: timm.create_model("test_efficientnet"), images(), 6),
    "timm convnext": (lambda: timm.create_model("test_convnext"), images(), 10),
    "timm vit": (lambda: timm.create_model("vit_tiny_patch16_224", img_size=32), images(), 14),
    "timm deit": (lambda: timm.create_model("deit_tiny_distilled_patch16_224", img_size=32), images(), 14),
    "timm eva": (lambda: timm.create_model("vit_tiny_patch16_dinov3_qkvb", img_size=32), images(), 13),
    "timm swin": (lambda: timm.create_model("swin_tiny_patch4_window7_224", img_size=56), images(56), 16),
    "timm mixer": (lambda: timm.create_model("gmlp_ti16_224", img_size=32), images(), 32),
    "timm mvitv2": (lambda: timm.create_model("mvitv2_tiny", img_size=64), images(64), 12),
    "bert": (lambda: transformers.BertModel(transformers.BertConfig(**TEXT)), texts(), 5),
    "bert classifier": (
        lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**TEXT)),
        texts(),
        6,
    ),
    "bert eager": (
        lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**TEXT, **EAGER)),
        texts(),
        6,
    ),
    "roberta": (lambda: transformers.RobertaModel(transformers.RobertaConfig(**TEXT)), texts(), 5),
    "roberta classifier": (
        lambda: transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**TEXT)),
        texts(),
        5,
    ),
    "distilbert": (lambda: transformers.DistilBertModel(transformers.DistilBertConfig(**DISTILLED)), texts(), 4),
    "distilbert classifier": (
        lambda: transformers.DistilBertForSequenceClassification(transformers.DistilBertConfig(**DISTILLED)),
        texts(),
        5,
    ),
}


@functools.cache
def model_of(name: str) -> nn.Module:
    """The model with random weights, also where it begins with zeros or ones, which would hide wrong blocks."""
    torch.manual_seed(0)
    model = ARCHITECTURES[name][0]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.std(correction=0) == 0:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


@functools.cache
def blocks_of(name: str) -> Blocks:
    return split(model_of(name), ARCHITECTURES[name][1])


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small layers wait for their threads longer than they compute
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


def bits(value: Any) -> list[Any]:
    """Names, shapes and bytes of an output or a state."""
    if isinstance(value, Tensor):
        return [value.dtype, tuple(value.shape), value.contiguous().flatten().view(torch.uint8).numpy().tobytes()]
    if hasattr(value, "items"):
        return [type(value), *((name, bits(part)) for name, part in value.items())]
    return [type(value), *map(bits, value)] if isinstance(value, tuple | list) else [value]


def call(function: Callable[..., Any], inputs: Any) -> Any:
    return function(**inputs) if isinstance(inputs, dict) else function(inputs)


def fewer(inputs: Any, items: int) -> Any:
    if isinstance(inputs, dict):
        return {name: value[:items] for name, value in inputs.items()}
    return inputs[:items]


# ---------------------------------------------------------------- every architecture


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_blocks_compute_what_the_model_computes(name: str) -> None:
    _, example, least = ARCHITECTURES[name]
    model, blocks = model_of(name), blocks_of(name)

    assert blocks.whole_reason is None
    assert len(blocks) >= least
    for inputs in (example, fewer(example, 1)):
        assert bits(call(compose(blocks), inputs)) == bits(call(model, inputs))
    output = call(model, example)
    output = output if isinstance(output, Tensor) else output[0]
    assert output.isfinite().all()
    assert not output[0].equal(output[-1])
    used = {id(parameter) for parameter in compose(blocks).parameters()}
    assert used <= {id(parameter) for parameter in model.parameters()}
    assert sum(block.parameters for block in blocks) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_part_runs_on_a_stored_state_again_and_again(name: str) -> None:
    example, blocks = ARCHITECTURES[name][1], blocks_of(name)
    expected = bits(call(model_of(name), example))

    for index in sorted({cut(blocks, parse_part(text)) for text in PARTS} | {1}):
        before = run(blocks[:index], example)
        stored = copy.deepcopy(before)
        for _ in range(2):
            assert bits(run(blocks[index:], stored)) == expected
        assert bits(stored) == bits(before)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_part_begins_within_one_block_of_the_request(name: str) -> None:
    blocks = blocks_of(name)
    costs = describe(blocks, ARCHITECTURES[name][1], runs=1, warmup_runs=0)
    amounts = {
        "blocks": [1.0 for _ in blocks],
        "layers": [float(block.layers) for block in blocks],
        "parameters": [float(block.parameters) for block in blocks],
        "time": [cost.time_s_per_item for cost in costs],
    }

    for unit, sizes in amounts.items():
        for percent in (75, 50, 25, 10):
            begin = cut(blocks, parse_part(f"last:{percent}%:{unit}"), costs)
            wanted, got = sum(sizes) * percent / 100, sum(sizes[begin:])
            assert 0 <= begin < len(blocks)
            assert got - sizes[begin] <= wanted <= got + sizes[begin - 1] or begin == len(blocks) - 1
    for count in range(1, len(blocks) + 1):
        assert len(blocks) - cut(blocks, parse_part(f"last:{count}")) == count


@pytest.mark.parametrize("name", ["resnet18", "densenet121", "vit", "swin_v2", "timm eva", "bert classifier"])
def test_heads_of_a_joint_model_share_what_comes_before_them(name: str) -> None:
    model, example, blocks = model_of(name), ARCHITECTURES[name][1], blocks_of(name)
    calls: list[str] = []
    first = next(module for module in compose(blocks[:1]).modules() if isinstance(module, nn.Conv2d | nn.Embedding))
    hook = first.register_forward_hook(lambda *_: calls.append("prefix"))

    together = joint(blocks, parse_part("joint:3:last:3"), seed=1)
    outputs = call(together, example)
    hook.remove()

    assert len(calls) == 1
    assert len(outputs) == 3
    assert bits(outputs[0]) == bits(call(model, example))
    assert len({str(bits(output)) for output in outputs}) == 3
    for head, output in zip(together.heads, outputs, strict=True):
        assert bits(call(compose([*blocks[:-3], *head.blocks]), example)) == bits(output)
    assert bits(call(compose(blocks), example)) == bits(call(model, example))


# ---------------------------------------------------------------- where a model is cut


def test_a_block_ends_before_the_next_layer() -> None:
    names = [block.name for block in blocks_of("resnet18")]
    assert names == ["conv1", *(f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)), "fc"]
    assert tuple(run(blocks_of("resnet18")[:9], images()).shape) == (2, 512)  # pooled and flattened
    assert [block.name for block in blocks_of("alexnet")][5:] == ["classifier.1", "classifier.4", "classifier.6"]


@pytest.mark.parametrize("name", ["convnext_tiny", "efficientnet_v2_s", "timm convnext", "timm swin"])
def test_the_last_block_is_the_last_linear_layer(name: str) -> None:
    linear = [module for module in model_of(name).modules() if isinstance(module, nn.Linear)][-1]
    last = compose(blocks_of(name)[-1:])
    assert {id(parameter) for parameter in last.parameters()} == {id(linear.weight), id(linear.bias)}


def test_layers_of_a_dense_block_hand_on_all_outputs_before_them() -> None:
    blocks = blocks_of("densenet121")
    index = [block.name for block in blocks].index("features.denseblock2.denselayer3")
    state = run(blocks[:index], images())
    assert [tuple(value.shape[:2]) for value in state] == [(2, 128), (2, 32), (2, 32)]


class Backbone(nn.Module):
    """A model inside a model of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = tv.vgg11(init_weights=False).features
        self.head = nn.Linear(512, 3)

    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        features: Tensor = self.backbone(x).mean(dim=(2, 3))
        logits: Tensor = self.head(torch.relu(features) * scale + torch.tensor([0.1]))
        return logits.view(x.shape[0], -1)


def test_a_model_of_the_users_own_is_split_and_left_as_it_was() -> None:
    model: nn.Module = Backbone().eval()
    before = set(vars(model))
    blocks = split(model, images())

    assert blocks.whole_reason is None
    assert [block.name for block in blocks][-2:] == ["backbone.18", "head"]
    assert set(vars(model)) == before
    for items in (1, 2, 5):
        assert bits(compose(blocks)(images(items=items))) == bits(model(images(items=items)))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Linear(4, 4), nn.Linear(6, 4), nn.Linear(4, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        out: Tensor = self.out(self.left(left) + self.right(right))
        return out


def test_several_inputs_by_place_and_by_name() -> None:
    model, left, right = TwoInputs().eval(), torch.randn(3, 4), torch.randn(3, 6)
    by_place, by_name = split(model, (left, right)), split(model, {"right": right, "left": left})

    assert len(by_place) == len(by_name) == 3
    assert bits(compose(by_place)(left, right)) == bits(model(left, right))
    assert bits(compose(by_name)(left=left, right=right)) == bits(model(left, right))


def test_a_sequential_of_the_users_own() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(12, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)
    )
    blocks = split(model.eval(), torch.randn(4, 3, 4))
    assert [block.name for block in blocks] == ["1", "3", "5"]


def test_blocks_from_a_function_of_the_users_own() -> None:
    model = tv.resnet18().eval()

    def stages(model: Any) -> list[Any]:
        stem = nn.Sequential(model.conv1, model.bn1, model.relu, model.maxpool)
        end = ("end", lambda x: model.fc(torch.flatten(model.avgpool(x), 1)))
        return [stem, model.layer1, model.layer2, model.layer3, model.layer4, end]

    blocks = split(model, images(), blocks=stages)
    assert [block.name for block in blocks] == ["block 0", "layer1", "layer2", "layer3", "layer4", "end"]
    assert bits(compose(blocks)(images())) == bits(model(images()))

    forgetful = split(model, images(), blocks=lambda model: stages(model)[1:])
    assert len(forgetful) == 1
    assert "its blocks raise" in str(forgetful.whole_reason)
    with pytest.raises(InputError, match="must give a list of modules"):
        split(model, images(), blocks=lambda model: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(InputError, match="must give modules, functions or"):
        split(model, images(), blocks=lambda model: [3])


# ---------------------------------------------------------------- masks


@pytest.mark.parametrize("name", ["bert classifier", "bert eager", "roberta classifier", "distilbert classifier"])
def test_the_attention_mask_is_carried_along(name: str) -> None:
    model, blocks = model_of(name), blocks_of(name)
    state = run(blocks[:2], texts())
    (hidden, values), (_, mask) = state.items()
    assert values.shape == (4, 12, 32)
    assert mask.shape[0] == 4
    without = {hidden: values}
    assert bits(run(blocks[2:], without)) != bits(model(**texts()))

    for inputs in (texts(padded=False), texts(6), {"input_ids": texts()["input_ids"]}):
        assert bits(compose(blocks)(**inputs)) == bits(model(**inputs))
    ids = texts()["input_ids"]
    assert bits(compose(blocks)(ids)) == bits(model(ids))


def test_segments_and_positions_reach_the_embeddings() -> None:
    model, blocks = model_of("bert classifier"), blocks_of("bert classifier")
    inputs = {**texts(), "token_type_ids": texts()["attention_mask"]}
    assert bits(compose(blocks)(**inputs)) == bits(model(**inputs))
    assert bits(model(**inputs)) != bits(model(**texts()))


def test_a_text_model_that_needs_more_than_its_pooled_output_runs_whole() -> None:
    model: Any = transformers.BertForPreTraining(transformers.BertConfig(**TEXT))
    model.eval()
    blocks = split(model, texts())
    assert blocks.whole_reason == "its blocks give other bits than the model"
    assert bits(compose(blocks)(**texts())) == bits(model(**texts()))


# ---------------------------------------------------------------- in place


class InPlace(nn.Module):
    """A residual block that begins with an activation in place, on what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(x)
        result: Tensor = self.two(torch.relu_(self.one(x))) + x
        return result


def test_a_block_that_works_in_place_leaves_a_stored_state_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(6, 6), InPlace(), InPlace(), nn.Linear(6, 2)).eval()
    x = torch.randn(5, 6)
    blocks = split(model, x)

    assert [block.modifies_input for block in blocks] == [False, True, True, False]
    assert bits(compose(blocks)(x)) == bits(model(x))
    stored = run(blocks[:1], x)
    before = stored.clone()
    assert bits(run(blocks[1:], stored)) == bits(compose(blocks[1:])(stored)) == bits(model(x))
    assert bits(stored) == bits(before)
    assert (stored < 0).any()  # the activation in place would have removed these

    heads = joint(blocks, parse_part("joint:2:last:3"))
    assert bits(heads(x)[0]) == bits(model(x))
    assert bits(heads.heads[1](stored)) == bits(heads(x)[1])


def test_a_view_of_a_stored_state_that_is_modified_later() -> None:
    layer, last = nn.Linear(6, 6).eval(), nn.Linear(6, 2).eval()
    model = nn.Sequential(layer, nn.Flatten(), nn.ReLU(inplace=True), last).eval()
    x = torch.randn(5, 6)
    blocks = split(model, x, blocks=list)

    assert [block.modifies_input for block in blocks] == [False, True, True, False]
    stored = run(blocks[:1], x)
    before = stored.clone()
    assert bits(run(blocks[1:], stored)) == bits(model(x))
    assert bits(stored) == bits(before)


# ---------------------------------------------------------------- hooks and forward methods


def test_hooks_on_layers_are_called() -> None:
    model = tv.resnet18().eval()
    model.layer2[0].conv1.register_forward_hook(lambda module, inputs, output: output * 2)
    model.layer3[1].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    blocks = split(model, images())

    assert len(blocks) == 10
    assert bits(compose(blocks)(images())) == bits(model(images()))


def test_a_stage_with_a_hook_stays_in_one_block() -> None:
    model = tv.resnet18().eval()
    calls: list[str] = []
    model.layer3.register_forward_hook(lambda *_: calls.append("layer3"))
    blocks = split(model, images())
    calls.clear()

    compose(blocks)(images())
    assert calls == ["layer3"]
    assert "layer3" in [block.name for block in blocks]


def _hooked(model: nn.Module) -> None:
    model.register_forward_hook(lambda module, inputs, output: output + 1)


def _replaced(model: nn.Module) -> None:
    forward = model.forward
    model.forward = lambda x: forward(x) + 1


def _compiled(model: nn.Module) -> None:
    model._compiled_call_impl = model._call_impl


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_hooked, "it has hooks, which its blocks would not call"),
        (_replaced, "its forward method has been replaced"),
        (_compiled, "it is compiled"),
    ],
)
@pytest.mark.parametrize("name", ["resnet18", "bert"])
def test_a_model_whose_own_call_was_changed_runs_whole(
    change: Callable[[nn.Module], None], reason: str, name: str
) -> None:
    model = copy.deepcopy(model_of(name))
    if name == "bert" and change is _hooked:
        model.encoder.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]
    elif name == "bert" and change is _replaced:
        forward = model.forward
        model.forward = lambda **inputs: forward(**inputs)
    else:
        change(model)
    example = ARCHITECTURES[name][1]

    blocks = split(model, example)
    assert blocks.whole_reason == reason
    assert len(blocks) == 1
    assert bits(call(compose(blocks), example)) == bits(call(model, example))
    assert cut(blocks, parse_part("last:25%")) == 0


class Doubled(tv.ResNet):  # type: ignore[misc]
    def forward(self, x: Tensor) -> Tensor:
        doubled: Tensor = super().forward(x) * 2
        return doubled


def test_a_forward_method_of_a_subclass_is_followed() -> None:
    model = Doubled(tv.resnet.BasicBlock, [1, 1, 1, 1]).eval()
    blocks = split(model, images())
    assert len(blocks) == 6
    assert bits(compose(blocks)(images())) == bits(model(images()))


# ---------------------------------------------------------------- what cannot be split


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        chosen: Tensor = self.one(x) if x.sum() > 0 else self.two(x)
        return chosen


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        noisy: Tensor = self.two(self.one(x)) + torch.rand_like(x)
        return noisy


class AcrossItems(nn.Module):
    """Puts the items of a batch into the second dimension, so that no state can be stored an item at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        turned: Tensor = self.two(self.one(x.unsqueeze(0)))
        return turned.squeeze(0)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Choosing(), "torch.fx cannot trace its forward method"),
        (Noisy(), "it gives different outputs for the same input"),
        (AcrossItems(), "it does not call two layers one after another"),
        (nn.Linear(4, 2), "it does not call two layers one after another"),
        (nn.Tanh(), "it does not call two layers one after another"),
    ],
)
def test_a_model_that_cannot_be_split_runs_whole_and_says_why(model: nn.Module, reason: str) -> None:
    x = torch.randn(3, 4)
    blocks = split(model.eval(), x)
    assert str(blocks.whole_reason).startswith(reason)
    assert [block.call for block in blocks] == [model]
    if not isinstance(model, Noisy):
        assert bits(compose(blocks)(x)) == bits(model(x))


def test_a_model_that_cannot_be_used_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"call model\.eval\(\) first"):
        split(model, torch.randn(2, 4))
    with pytest.raises(InputError, match="the model cannot run on the example: it raised RuntimeError"):
        split(model.eval(), torch.randn(2, 5))
    with pytest.raises(InputError, match=r"only a torch\.nn\.Module can be split into blocks, got builtin"):
        split(torch.relu_, torch.randn(2, 5))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least one item"):
        split(model, torch.randn(0, 4))


def test_a_last_layer_of_zeros_does_not_hide_a_wrong_block() -> None:
    last = nn.Linear(4, 2)
    nn.init.zeros_(last.weight)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Tanh(), last).eval()
    x = torch.randn(3, 4)

    assert split(model, x, blocks=list).whole_reason is None
    wrong = split(model, x, blocks=lambda model: [model[0], model[1], model[3]])
    assert wrong.whole_reason == "its blocks give other bits than the model"
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_an_example_from_inference_mode_can_be_used() -> None:
    model = tv.resnet18().eval()
    with torch.inference_mode():
        x = images()
        blocks = split(model, x)
        assert bits(compose(blocks)(x)) == bits(model(x))
    assert len(blocks) == 10


def test_another_thread_may_run_a_model_while_one_is_split() -> None:
    model, x = tv.resnet18().eval(), images()
    expected, wrong, stop = bits(model(x)), [], threading.Event()

    def work() -> None:
        with torch.no_grad():
            while not stop.is_set():
                try:
                    if bits(model(x)) != expected:
                        wrong.append("other bits")
                except Exception as error:
                    wrong.append(repr(error))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(4):
            assert len(split(model_of("timm convnext"), images())) >= 10
    finally:
        stop.set()
        thread.join()
    assert wrong == []
