"""Static figures: what torchvision and timm say of a model without a download."""

import pytest

from stoker.errors import InputError
from stoker.ranking.static import StaticFigure, static_figure


def test_torchvision_brings_accuracy_and_parameters() -> None:
    from torchvision.models import resnet50

    figure = static_figure("resnet50", weights="IMAGENET1K_V1")
    assert figure.dataset == "ImageNet-1K"
    assert figure.accuracy == pytest.approx(76.13)
    assert figure.parameters == sum(each.numel() for each in resnet50().parameters())
    default = static_figure("resnet50")
    assert default.accuracy is not None
    assert default.accuracy > 80
    assert static_figure("r3d_18").dataset == "Kinetics-400"


def test_models_without_a_top_1_accuracy_have_parameters_alone() -> None:
    figure = static_figure("fcn_resnet50")
    assert figure.accuracy is None
    assert figure.dataset is None
    assert figure.parameters == 35322218


def test_timm_knows_the_parameters() -> None:
    timm = pytest.importorskip("timm")
    figure = static_figure("timm/resnet18")
    assert figure == StaticFigure(parameters=sum(each.numel() for each in timm.create_model("resnet18").parameters()))
    assert static_figure("timm/resnet18", weights="a1_in1k") == figure


def test_of_other_models_nothing_is_known() -> None:
    assert static_figure("hf/google-bert/bert-base-uncased") == StaticFigure()


@pytest.mark.parametrize(
    ("model", "weights", "sentence"),
    [
        ("resnet51", None, "torchvision has no model 'resnet51'"),
        ("resnet50", "V9", "resnet50 has no weights 'V9'; torchvision has IMAGENET1K_V1, IMAGENET1K_V2"),
        ("timm/resnet51", None, "timm has no model 'resnet51'"),
    ],
)
def test_unknown_names_are_refused(model: str, weights: str | None, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        static_figure(model, weights=weights)
