"""A model divided into blocks, or the whole of it as one block."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from stoker.errors import InputError
from stoker.workload.blocks.block import Block, Blocks
from stoker.workload.blocks.encoder import encoder_blocks, is_encoder
from stoker.workload.blocks.graph import Unsplittable, described, trace_blocks
from stoker.workload.blocks.state import apply, clone, item_count
from stoker.workload.blocks.verification import verified

BlockMaker = Callable[[Any], Iterable[Any]]
"""Gives a model's blocks in order: modules, functions, or pairs of a name and one of those."""


def split(model: nn.Module, example: Any, *, blocks: BlockMaker | None = None) -> Blocks:
    """The model as blocks whose composition gives the same bits, checked on `example`.

    `example` is a batch as the model takes it: a tensor, a tuple of positional or a mapping of keyword arguments, with
    the items in the first dimension; two items or more show that nothing depends on their number. `blocks` is a
    function that gives the blocks of a model of the user's. A model that cannot be split is one block, and
    `whole_reason` says why.

    Blocks share the model's weights: move the model to its device and load its weights first. Raises InputError where
    the model is in training mode or cannot run on the example, and where `blocks` gives something else than blocks.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"only a torch.nn.Module can be split into blocks, got {type(model).__name__}")
    if any(module.training for module in model.modules()):
        raise InputError("only a model in evaluation mode can be split into blocks: call model.eval() first")
    item_count(example)
    with torch.inference_mode(False), torch.no_grad():
        example = clone(example)
        expected = _run_model(model, example)
        ways: list[Callable[[], list[Block]]] = []
        if blocks is not None:
            ways.append(functools.partial(_user_blocks, model, blocks))
        else:
            if is_encoder(model):
                ways.append(functools.partial(encoder_blocks, model, expected))
            ways.append(functools.partial(trace_blocks, model, example))
        reasons = []
        for way in ways:
            try:
                return Blocks(verified(way(), model, example, expected))
            except Unsplittable as error:
                reasons.append(str(error))
            except InputError:
                raise
            except Exception as error:  # blocks that do not fit together may raise anything
                reasons.append(f"its blocks raise {described(error)}")
    return Blocks((Block(name=type(model).__name__, call=model),), whole_reason=reasons[0])


def _run_model(model: nn.Module, example: Any) -> Any:
    try:
        return apply(model, clone(example))
    except Exception as error:  # a model may raise anything
        raise InputError(f"the model cannot run on the example: it raised {described(error)}") from error


def _user_blocks(model: nn.Module, make: BlockMaker) -> list[Block]:
    """What a function of the user's gives, as blocks; modules are named as in the model."""
    made = make(model)
    pieces = list(made) if isinstance(made, Iterable) else []
    if not pieces:
        raise InputError(f"blocks= must give a list of modules or functions, got {made!r:.80}")
    names = {module: name for name, module in model.named_modules()}
    found = []
    for number, piece in enumerate(pieces):
        name, call = piece if isinstance(piece, tuple) and len(piece) == 2 else (None, piece)
        if not callable(call) or not isinstance(name, str | None):
            raise InputError(f"blocks= must give modules, functions or (name, function) pairs, got {piece!r:.80}")
        if name is None:
            name = (names.get(call) if isinstance(call, nn.Module) else "") or f"block {number}"
        found.append(Block(name=name, call=call))
    return found
