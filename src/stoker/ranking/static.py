"""What is known of a candidate before it sees the data: its published accuracy and its parameters.

Nothing is downloaded: torchvision and timm bring these facts with the package.
"""

from stoker.errors import InputError
from stoker.packages import optional
from stoker.records.ranking import StaticFigure as StaticFigure


def static_figure(model: str, *, weights: str | None = None) -> StaticFigure:
    """Static figures of a torchvision model (`resnet18`) or a timm model (`timm/…`).

    `weights` names one of several published weights (`IMAGENET1K_V2`, or timm's tag); the package's default otherwise.
    timm publishes no accuracy in the package: only the parameters are known. Of other models nothing is known.

    Raises `InputError` when the library has no such model or weights, `MissingPackage` when timm is not installed.
    """
    family, _, name = model.rpartition("/")
    if family == "":
        return _of_torchvision(name, weights)
    if family == "timm":
        return _of_timm(name if weights is None else f"{name.partition('.')[0]}.{weights}")
    return StaticFigure()


def _of_torchvision(name: str, weights: str | None) -> StaticFigure:
    from torchvision import models

    try:
        known = models.get_model_weights(name)
    except ValueError:
        raise InputError(f"torchvision has no model {name!r}") from None
    if not len(known):
        return StaticFigure()
    try:
        meta = (known.DEFAULT if weights is None else known[weights]).meta
    except KeyError:
        names = ", ".join(each.name for each in known)
        raise InputError(f"{name} has no weights {weights!r}; torchvision has {names}") from None
    for dataset, metrics in meta.get("_metrics", {}).items():
        if "acc@1" in metrics:
            return StaticFigure(accuracy=metrics["acc@1"], dataset=dataset, parameters=meta.get("num_params"))
    return StaticFigure(parameters=meta.get("num_params"))


def _of_timm(name: str) -> StaticFigure:
    timm = optional("timm", extra="timm")
    import torch

    if not timm.is_model(name):
        raise InputError(f"timm has no model {name!r}")
    try:
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False)
    except Exception as error:
        raise InputError(f"timm cannot build {name}: {error}") from None
    return StaticFigure(parameters=sum(each.numel() for each in model.parameters()))
