"""Makes a workload's model, dataset and optimizer, and calls model and loss on a batch. Nothing here is timed."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import Dataset

from stoker.errors import InputError
from stoker.workload.batch import batch_bytes as batch_bytes
from stoker.workload.batch import count_items as count_items
from stoker.workload.batch import known_count as known_count
from stoker.workload.batch import split as split
from stoker.workload.batch import to_device as to_device
from stoker.workload.batch import without_target
from stoker.workload.loaders import gives_batches, is_loader, parts_of
from stoker.workload.workload import Workload

# Weights of the auxiliary heads' losses, from the papers that introduced the two models.
_AUXILIARY_WEIGHT = {"InceptionOutputs": 0.4, "GoogLeNetOutputs": 0.3}
_SGD_LEARNING_RATE = 0.01


# ---------------------------------------------------------------- making


def make(thing: Any) -> Any:
    """The object that a part of a workload stands for: classes and functions are called, others used as they are."""
    if isinstance(thing, type):
        return thing()
    if is_loader(thing) or isinstance(thing, nn.Module | Dataset):  # a module is callable, but does not make modules
        return thing
    if hasattr(type(thing), "__getitem__") or hasattr(type(thing), "__iter__"):
        return thing
    return thing() if callable(thing) else thing


def model_bytes(model: nn.Module) -> int:
    """The size of all parameters and buffers."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def make_model(workload: Workload) -> nn.Module:
    model = make(workload.model)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"a workload's model must be a torch.nn.Module or a function that makes one, got {type(model).__name__}"
        )
    return model


def make_dataset(workload: Workload, part: Literal["train", "validation"] = "train") -> Any:
    dataset = make(workload.dataset if part == "train" else workload.validation)
    if is_loader(dataset):
        dataset = parts_of(dataset)["dataset"]
    what = "dataset" if part == "train" else "validation"
    if dataset is None:
        raise InputError(
            f"the workload {workload.name!r} has no {what} dataset, or the function that makes it gave None"
        )
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
        raise InputError(
            f"a workload's {what} must be a dataset or a function that makes one, got {type(dataset).__name__}"
        )
    return dataset


def opened(workload: Workload) -> Workload:
    """The workload with its dataset made; a DataLoader that a function makes is taken apart. A pipeline of webdataset
    that gives whole batches is not batched again."""
    made = make(workload.dataset)
    if made is not workload.dataset:
        dataset = made if is_loader(made) else make_dataset(workload.with_(dataset=made))
        workload = workload.with_(dataset=dataset)
    if gives_batches(workload.dataset) and workload.batch_sampler is None:
        return workload.with_(batched=True)
    return workload


def make_batch_sampler(workload: Workload, batch_size: int) -> Any:
    """The workload's batch sampler; a function is called with the batch size. Raises InputError if it makes none."""
    if workload.batching != "function":
        return workload.batch_sampler
    made = workload.batch_sampler(batch_size)
    if not hasattr(made, "__iter__"):
        raise InputError(
            f"a workload's batch_sampler must give a batch sampler when called with a batch size, "
            f"got {type(made).__name__}"
        )
    return made


def make_optimizer(workload: Workload, model: nn.Module) -> Any:
    """The workload's optimizer over the trainable parameters; SGD with momentum if it has none."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise InputError("the model has no parameters that require a gradient, so there is nothing to train")
    if workload.optimizer is None:
        return torch.optim.SGD(parameters, lr=_SGD_LEARNING_RATE, momentum=0.9)
    optimizer = workload.optimizer(parameters)
    if not callable(getattr(optimizer, "step", None)) or not callable(getattr(optimizer, "zero_grad", None)):
        raise InputError(
            f"a workload's optimizer must give an optimizer when called with parameters, got {type(optimizer).__name__}"
        )
    return optimizer


# ---------------------------------------------------------------- calling


def forward(workload: Workload, model: nn.Module, inputs: Any, *, with_target: bool = False) -> Any:
    """Call the model on a batch's inputs: a tensor, several inputs, or a mapping of keyword arguments.

    The model receives labels only if it has to compute the loss itself: in training, without a loss in the workload,
    or `with_target`.
    """
    if not with_target and (workload.loss is not None or not model.training):
        inputs = without_target(inputs)
    if workload.forward is not None:
        return workload.forward(model, inputs)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if type(inputs) in (tuple, list):
        return model(*inputs)
    try:
        return model(inputs)
    except (TypeError, AttributeError) as error:
        if not isinstance(inputs, torch.Tensor):
            error.add_note(
                f"Stoker: the model was called with a batch of type {type(inputs).__name__}; Workload(forward=...) or "
                "Workload(step=...) can turn it into what the model takes"
            )
        raise


def loss_of(workload: Workload, output: Any, target: Any) -> torch.Tensor:
    """The loss of a forward pass, a tensor of one number. Raises InputError if there is none."""
    if workload.loss is None:
        return _own_loss(output)
    if target is None:
        raise InputError(
            "the loss needs a target, and the batch has none: give (inputs, target), a mapping with labels, "
            "or a step(model, batch) of your own: Workload(step=...)"
        )
    if not _is_torch_loss(workload.loss):
        return _one_number(workload.loss(output, target))
    loss = workload.loss(logits_of(output), target)
    weight = _AUXILIARY_WEIGHT.get(type(output).__name__, 0.0)
    for auxiliary in output[1:] if weight else ():
        if auxiliary is not None:
            loss = loss + weight * workload.loss(auxiliary, target)
    return _one_number(loss)


def step_loss(result: Any) -> torch.Tensor | None:
    """What the user's own step returned: a loss, or None if the step made the backward pass and the update itself."""
    return None if result is None else _one_number(result)


def logits_of(output: Any) -> Any:
    """The logits in a model's output, which may be a tensor, a mapping or an object of transformers."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, Mapping):
        return next((output[name] for name in ("logits", "out") if name in output), output)
    return getattr(output, "logits", output)


def top1(output: Any, target: Any) -> torch.Tensor:
    """The share of a batch whose most likely class is the target, as a tensor on the model's device."""
    logits: torch.Tensor = logits_of(output)
    return torch.eq(logits.argmax(dim=1), target).float().mean()


def _own_loss(output: Any) -> torch.Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None:
        raise InputError(
            "the workload has no loss, and its model returned none: give Workload(loss=...) or a step(model, batch), "
            "or use --mode infer"
        )
    return _one_number(loss)


def _is_torch_loss(loss: Callable[..., Any]) -> bool:
    while isinstance(loss, functools.partial):
        loss = loss.func
    return isinstance(loss, nn.modules.loss._Loss) or getattr(loss, "__module__", None) == nn.functional.__name__


def _one_number(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor):
        raise InputError(f"the loss must be a tensor of one number, got {type(loss).__name__}")
    if loss.numel() != 1:
        raise InputError(f"the loss must be a tensor of one number, got one of shape {tuple(loss.shape)}")
    return loss
