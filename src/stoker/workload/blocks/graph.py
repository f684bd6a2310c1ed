"""Blocks of any model whose forward method torch.fx can trace.

Only the code that connects layers is traced. Repeated units (a residual block, an encoder layer) stay whole: a block
calls the model's own module, with its hooks and its own forward method. A new block begins where a module with a weight
matrix or kernel is called; activations, norms, pooling and reshaping belong to the block before them.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from enum import Enum
from typing import Any

import torch
from torch import fx, nn

from stoker.errors import InputError
from stoker.workload.blocks.block import Block, Segment, is_layer, weight_layers
from stoker.workload.blocks.state import clone, is_plain, item_count, repeat, same_bits, take

_TRACING = threading.Lock()
_CLASSIFIER_LAYERS = 3
"""A last unit with more layers than this is no classifier but a unit like the others, and is not traced into."""


class Unsplittable(InputError):
    """The model cannot be split; the message is the reason, to follow "because"."""


def trace_blocks(model: nn.Module, example: Any) -> list[Block]:
    """The model's blocks, unverified. Raises Unsplittable with the reason."""
    reason = closed_reason(model)
    if reason is not None:
        raise Unsplittable(reason)
    with _attributes_restored(model):
        traced = _open_classifier(model, example, _trace(model, example))
        kinds = _kinds(model, traced.graph, example)
        cuts = _cuts(traced, kinds)
        if not cuts:
            raise Unsplittable("it does not call two layers one after another")
        return _segments(model, traced, cuts, kinds)


def described(error: Exception) -> str:
    """An error of someone else's code, in a line."""
    sentence = (str(error).strip().splitlines() or [""])[0].partition(". ")[0]
    return f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__


def closed_reason(module: nn.Module) -> str | None:
    """Why blocks must not replace the module's own code; None where they may."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    if any(hooks):
        return "it has hooks, which its blocks would not call"
    if isinstance(module, torch.jit.ScriptModule) or getattr(module, "_compiled_call_impl", None) is not None:
        return "it is compiled"
    if "forward" in vars(module):
        return "its forward method has been replaced"
    return None


# ---------------------------------------------------------------- tracing


class _Tracer(fx.Tracer):
    """Traces through containers of units, modules with most of the model's layers, and those in `opened`.

    Everything else it calls as a whole.

    torch.fx replaces nn.Module.__call__ in all threads while it traces. What another thread runs meanwhile is passed
    through.
    """

    def __init__(self, model: nn.Module, example: Any, opened: Iterable[str], closed: Iterable[str]) -> None:
        super().__init__()
        self.failed_in = ""
        self._names, self._call = _signature(model, example)
        self._layers = weight_layers(model)
        self._opened, self._closed = set(opened), set(closed)
        self._thread = threading.get_ident()

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        inputs = [self.create_proxy("placeholder", name, (), {}) for name in self._names]
        return lambda root, *values: self._call(*values), [self.root, *inputs]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self._closed or closed_reason(m) is not None:
            return True
        holds_most = 2 * weight_layers(m) > self._layers and not is_layer(m)
        return module_qualified_name not in self._opened and not holds_most and not _is_container(m)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        made_in_forward = m not in (self.submodule_paths or ())  # such as nn.ReLU()(x)
        if threading.get_ident() != self._thread or made_in_forward:
            return forward(*args, **kwargs)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            name = self.path_of_module(m)
            if not self.failed_in and not self.is_leaf_module(m, name):
                self.failed_in = name
            raise

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Mapping) and is_dataclass(a):  # an output of transformers, which torch.fx takes for a dict
            return self.create_node("call_function", type(a), (), {name: self.create_arg(a[name]) for name in a})
        return super().create_arg(a)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


@dataclass(frozen=True, kw_only=True)
class _Trace:
    """A traced model. A block can begin at each of `units`, calls of modules with weights."""

    graph: fx.Graph
    units: tuple[fx.Node, ...]
    opened: frozenset[str]


def _trace(model: nn.Module, example: Any, opened: frozenset[str] = frozenset()) -> _Trace:
    """Trace. A container whose code cannot be traced is called as a whole instead."""
    closed: set[str] = set()
    while True:
        tracer = _Tracer(model, example, opened, closed)
        try:
            with _TRACING:
                graph = tracer.trace(model)
            break
        except Exception as error:  # a forward method may raise anything when it meets a proxy
            if not tracer.failed_in or tracer.failed_in in closed:
                raise Unsplittable(f"torch.fx cannot trace its forward method: {described(error)}") from error
            closed.add(tracer.failed_in)
    units = [node for node in _ordered(graph) if node.op == "call_module"]
    return _Trace(
        graph=graph,
        units=tuple(node for node in units if weight_layers(model.get_submodule(str(node.target)))),
        opened=opened,
    )


def _signature(model: nn.Module, example: Any) -> tuple[list[str], Callable[..., Any]]:
    """Names for the model's inputs, and its forward method as a function of their values in that order."""
    if isinstance(example, Mapping):
        names = list(example)
        return names, lambda *values: model.forward(**dict(zip(names, values, strict=True)))
    count = len(example) if isinstance(example, tuple) else 1
    return [f"input_{number}" for number in range(count)], lambda *values: model.forward(*values)


def _open_classifier(model: nn.Module, example: Any, traced: _Trace) -> _Trace:
    """Trace into the last unit where that is a small classifier, so that its last linear layer is a block."""
    found = traced
    while found.units:
        name = str(found.units[-1].target)
        classifier = model.get_submodule(name)
        if isinstance(classifier, nn.Linear):
            return found
        layers = [part for part in classifier.modules() if is_layer(part)]
        if len(layers) > _CLASSIFIER_LAYERS or not isinstance(layers[-1], nn.Linear):
            break
        try:
            found = _trace(model, example, found.opened | {name})
        except Unsplittable:
            break
        inside = {unit for unit in found.units if str(unit.target).startswith(f"{name}.")}
        any_value = dict.fromkeys(found.graph.nodes, _Kind.BATCH)
        if not inside or any(len(cut.needed) > 1 for cut in _cuts(found, any_value) if cut.unit in inside):
            break
    return traced


def _is_container(module: nn.Module) -> bool:
    """Whether a module only strings units together: a Sequential of several layers, or a stage of repeated units."""
    if type(module).forward is nn.Sequential.forward:
        return sum(weight_layers(child) > 0 for child in module.children()) > 1
    lists = [part for part in (module, *module.children()) if isinstance(part, _LISTS)]
    return any(_repeats(part.children()) for part in lists)


_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def _repeats(children: Iterable[nn.Module]) -> bool:
    """Whether two or more modules are of one class that has several layers."""
    kinds = [type(child) for child in children if weight_layers(child) > 1]
    return len(kinds) > len(set(kinds))


@contextmanager
def _attributes_restored(model: nn.Module) -> Iterator[None]:
    """Take back what tracing leaves on modules: constants of torch.fx, and proxies that a forward method stored."""
    saved = [(module, dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes in saved:
            now = vars(module)
            for name in set(now) - set(attributes):
                del now[name]
            now.update(attributes)


# ---------------------------------------------------------------- cutting


class _Kind(Enum):
    """What a value can be for a block that gets it from another one."""

    BATCH = "a tensor with the items in its first dimension"
    SHARED = "the same for every batch of such items: a size, a table of positions"
    COUNT = "the number of items"


@dataclass(frozen=True, kw_only=True)
class _Cut:
    """Before a unit: the values that it and the nodes after it need from the nodes before it."""

    place: int
    unit: fx.Node
    needed: tuple[fx.Node, ...]


def _ordered(graph: fx.Graph) -> list[fx.Node]:
    """The model's inputs, then the nodes that depend on them. The others are constants, which each block makes."""
    found = {node: None for node in graph.nodes if node.op == "placeholder"}
    for node in graph.nodes:
        if node.op != "output" and any(each in found for each in node.all_input_nodes):
            found[node] = None
    return list(found)


def _cuts(traced: _Trace, kinds: Mapping[fx.Node, _Kind]) -> list[_Cut]:
    """Where a block can end: before each unit but the first, if the kind of all values needed after it is known."""
    nodes = _ordered(traced.graph)
    place = {node: number for number, node in enumerate(nodes)}
    last_use = {node: max((place.get(user, len(nodes)) for user in node.users), default=-1) for node in nodes}
    found = []
    for unit in traced.units[1:]:
        needed = tuple(node for node in nodes[: place[unit]] if last_use[node] >= place[unit])
        if all(node in kinds for node in needed) and any(kinds[node] is _Kind.BATCH for node in needed):
            found.append(_Cut(place=place[unit], unit=unit, needed=needed))
    return found


def _kinds(model: nn.Module, graph: fx.Graph, example: Any) -> Mapping[fx.Node, _Kind]:
    """The kind of each value, found by two runs with different numbers of items. What is of no kind is left out."""
    items = item_count(example)
    other = take(example, 1) if items > 1 else repeat(example, 2)
    one, two = _Watch(model, graph, example), _Watch(model, graph, other)
    found: dict[fx.Node, _Kind] = {}
    for node, value in one.seen.items():
        twin = two.seen[node]
        if value is _BATCH and twin is _BATCH:
            found[node] = _Kind.BATCH
        elif type(value) is int and value == one.items and twin == two.items:
            found[node] = _Kind.COUNT
        elif value is not _BATCH and is_plain(value) and same_bits(value, twin):
            found[node] = _Kind.SHARED
    return found


_BATCH = object()


class _Watch(fx.Interpreter):
    """Runs a graph on a batch and remembers each value; of those that are batches, only that they are."""

    def __init__(self, model: nn.Module, graph: fx.Graph, batch: Any) -> None:
        super().__init__(model, graph=graph)
        self.items = item_count(batch)
        self.seen: dict[fx.Node, Any] = {}
        inputs = clone(batch)
        values = list(inputs.values()) if isinstance(inputs, Mapping) else inputs
        self.run(*(values if isinstance(values, list | tuple) else [values]))

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        is_batch = isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == self.items
        self.seen[n] = _BATCH if is_batch else value
        return value


def _segments(model: nn.Module, traced: _Trace, cuts: Sequence[_Cut], kinds: Mapping[fx.Node, _Kind]) -> list[Block]:
    nodes = _ordered(traced.graph)
    inputs = tuple(node for node in nodes if node.op == "placeholder")
    (output,) = (node for node in traced.graph.nodes if node.op == "output")
    begins = [len(inputs), *(cut.place for cut in cuts)]
    ends = [*begins[1:], len(nodes)]
    results = [*(_state(cut.needed, kinds) for cut in cuts), output.args[0]]
    units = [traced.units[0], *(cut.unit for cut in cuts)]
    blocks = []
    for unit, needed, begin, end, result in zip(
        units, [inputs, *(cut.needed for cut in cuts)], begins, ends, results, strict=True
    ):
        graph = _subgraph(needed, nodes[begin:end], result, kinds)
        blocks.append(Block(name=str(unit.target), call=Segment(fx.GraphModule(model, graph, "Traced"))))
    return blocks


def _state(needed: Sequence[fx.Node], kinds: Mapping[fx.Node, _Kind]) -> Any:
    """What a block hands on: one batch, or a tuple. The number of items is left out; batches have it."""
    state = tuple(node for node in needed if kinds[node] is not _Kind.COUNT)
    return state[0] if len(state) == 1 else state


def _subgraph(
    needed: Sequence[fx.Node], nodes: Iterable[fx.Node], result: Any, kinds: Mapping[fx.Node, _Kind]
) -> fx.Graph:
    """A graph that takes a state, runs nodes on it and gives a result; constants are made where they are needed."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in needed:
        if node.op == "placeholder" or kinds[node] is not _Kind.COUNT:
            copies[node] = graph.placeholder(str(node.target if node.op == "placeholder" else node.name))
    for node in needed:
        if node not in copies:
            batch = next(each for each in needed if kinds[each] is _Kind.BATCH)
            copies[node] = graph.call_function(len, (copies[batch],))

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            copies[node] = graph.node_copy(node, copied)
        return copies[node]

    for node in nodes:
        copied(node)
    graph.output(fx.map_arg(result, copied))
    return graph
