"""What identifies a block by content, so that candidates with equal blocks can share their outputs.

Blocks with equal fingerprints give the same output for the same input, on one kind of device and with one build of
PyTorch. Where the first blocks of two models agree one by one, the models share that prefix; names do not matter.
"""

import enum
import functools
import hashlib
import inspect
import math
import platform
import sys
import types
import uuid
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from stoker.errors import InputError
from stoker.workload.blocks.block import Block
from stoker.workload.blocks.state import as_bytes

_LIBRARIES = ("torch", "torchvision", "timm", "transformers", "stoker")
"""Packages whose code is identified by name and version; anyone else's by the content of its file."""

_DESCRIPTIVE = frozenset(
    {
        "_commit_hash",
        "_name_or_path",
        "architectures",
        "finetuning_task",
        "id2label",
        "label2id",
        "output_loading_info",
        "problem_type",
        "task_specific_params",
        "tokenizer_class",
        "transformers_version",
    }
)
"""Fields of a transformers configuration that name a checkpoint or its labels. No layer reads them, and they differ
between snapshots with equal layers."""

_OF_EVERY_MODULE = frozenset(vars(nn.Module())) | {"_is_hf_initialized", "_output_capturing_hooks_installed"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_HEAP_TYPE = 1 << 9
"""CPython's flag of a class that a class statement made; other types may keep state where it cannot be read."""


def fingerprint(block: Block) -> str:
    """A digest of the block's code, settings and weights.

    What cannot be identified by content (a hook, an object of unknown layout, code without a file) gives a digest that
    is never seen again, so that nothing is shared by mistake. Raises InputError where weights are not loaded.
    """
    digest = _Digest()
    digest.add(block.call)
    return digest.hexdigest()


class _Digest:
    """Feeds values to a hash in a form that depends on their content alone."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._held: list[Any] = []

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def add(self, value: Any) -> None:
        if type(value) in (type(None), bool, int, str, bytes, complex, type(...)):
            self._mark(type(value).__name__, repr(value))
        elif isinstance(value, float):
            self._mark("float", value.hex())
        elif isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
            self._mark("torch", repr(value))
        elif isinstance(value, tuple | frozenset | slice | range):  # one or many of the same content: no difference
            self._collection(value)
        elif self._again(value):
            return
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, fx.GraphModule):
            self._graph(value)
        elif isinstance(value, nn.Module):
            self._module(value)
        elif isinstance(value, list | set | Mapping):
            self._collection(value)
        elif isinstance(value, type | types.FunctionType):
            self._code(value)
        elif isinstance(value, functools.partial | types.MethodType | types.BuiltinFunctionType):
            self._callable(value)
        else:
            self._object(value)

    def _mark(self, *texts: str) -> None:
        for text in texts:
            encoded = text.encode()
            self._hash.update(len(encoded).to_bytes(8, "little") + encoded)

    def _again(self, value: Any) -> bool:
        """Whether a value was fed before; then its number stands for it."""
        number = self._seen.setdefault(id(value), len(self._seen))
        if number < len(self._held):
            self._mark("again", str(number))
            return True
        self._held.append(value)  # so that no other object gets its id
        return False

    def _unknown(self) -> None:
        self._mark("unknown", uuid.uuid4().hex)

    # ------------------------------------------------------------ weights and layers

    def _tensor(self, tensor: torch.Tensor) -> None:
        if tensor.is_meta:
            raise InputError("a block whose weights are on the meta device has no fingerprint: load them first")
        if tensor.layout != torch.strided or tensor.is_quantized or type(tensor) not in (torch.Tensor, nn.Parameter):
            self._unknown()
            return
        self._mark("tensor", str(tensor.dtype), str(tuple(tensor.shape)), str(tensor.stride()))
        self._hash.update(as_bytes(tensor.cpu()).numpy().data)

    def _module(self, module: nn.Module) -> None:
        self._mark("module")
        self._code(type(module))
        self.add(module.training)
        if any(vars(module)[name] for name in _HOOKS):
            self._unknown()
        skipped = _OF_EVERY_MODULE | ({"name_or_path"} if hasattr(module, "base_model_prefix") else set())
        self._named((name, vars(module)[name]) for name in sorted(set(vars(module)) - skipped))
        self._named(module._parameters.items())
        counts_batches = isinstance(module, nn.modules.batchnorm._NormBase)  # in training; nothing else reads the count
        self._named(
            (name, buffer)
            for name, buffer in module._buffers.items()
            if not (counts_batches and name == "num_batches_tracked")
        )
        self._named(module._modules.items())

    def _named(self, values: Iterable[tuple[str, Any]]) -> None:
        self._mark("names")
        for name, value in values:
            self._mark("name", name)
            self.add(value)

    def _graph(self, traced: fx.GraphModule) -> None:
        """A traced graph, with its nodes and layers numbered by their order instead of named.

        A node among the arguments becomes a complex number with an infinite part, which no argument of a layer is.
        """
        self._mark("graph")
        numbers = {node: number for number, node in enumerate(traced.graph.nodes)}
        for node in traced.graph.nodes:
            self._mark(node.op)
            if node.op in ("call_module", "get_attr"):
                self.add(functools.reduce(getattr, str(node.target).split("."), traced))
            elif node.op != "placeholder":
                self.add(node.target)
            self.add(fx.map_arg((node.args, dict(node.kwargs)), lambda each: complex(numbers[each], math.inf)))

    # ------------------------------------------------------------ settings and code

    def _collection(self, value: Any) -> None:
        self._mark(next(kind.__name__ for kind in _COLLECTIONS if isinstance(value, kind)))
        if isinstance(value, slice | range):
            parts: list[Any] = [value.start, value.stop, value.step]
        elif isinstance(value, Mapping):
            parts = [part for pair in value.items() for part in pair]
        else:
            parts = sorted(value, key=repr) if isinstance(value, set | frozenset) else list(value)
        self._mark(str(len(parts)))
        for part in parts:
            self.add(part)

    def _code(self, value: Any) -> None:
        """A class or function: the name and version of a library's, the file and the code of anyone else's."""
        for each in value.__mro__[:-1] if isinstance(value, type) else (value,):
            origin = _origin(each)
            if origin is None:
                self._unknown()
                return
            self._mark("code", each.__qualname__, *origin)
            named = str(each.__module__).partition(".")[0] in _LIBRARIES and "<" not in each.__qualname__
            parts = () if named else vars(each).values() if isinstance(each, type) else (each,)
            for part in parts:
                function = getattr(part, "__func__", getattr(part, "fget", part))  # of a class method or a property
                if isinstance(function, types.FunctionType):
                    self._function(function, enclosing="<" in each.__qualname__ + function.__qualname__)

    def _function(self, function: types.FunctionType, *, enclosing: bool) -> None:
        """What a function was made of. Many can have one name with <locals> or <lambda>, and enclose other values."""
        codes = [function.__code__]
        for code in codes:
            self._mark(code.co_code.hex(), " ".join((*code.co_names, *code.co_varnames, *code.co_freevars)))
            codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
            self.add(tuple(part for part in code.co_consts if not isinstance(part, types.CodeType)))
        self.add((function.__defaults__, function.__kwdefaults__))
        for cell in (function.__closure__ or ()) if enclosing else ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # a name that is not yet bound
                self._mark("empty")

    def _callable(self, value: Any) -> None:
        if isinstance(value, functools.partial):
            self.add((value.func, value.args, value.keywords))
        elif isinstance(value, types.MethodType):
            self.add((value.__func__, value.__self__))
        elif value.__self__ is None or isinstance(value.__self__, type | types.ModuleType):
            self._mark(
                "builtin", value.__qualname__, str(value.__module__), torch.__version__, platform.python_version()
            )
        else:
            self._unknown()

    def _object(self, value: Any) -> None:
        kind = type(value)
        if isinstance(value, enum.Enum):
            self._code(kind)
            self._mark(value.name)
        elif not all(each.__flags__ & _HEAP_TYPE and "__slots__" not in vars(each) for each in kind.__mro__[:-1]):
            self._unknown()
        else:
            self._code(kind)
            skipped = _DESCRIPTIVE if hasattr(value, "model_type") else frozenset()
            self._named((name, vars(value)[name]) for name in sorted(set(vars(value)) - skipped))


_COLLECTIONS = (tuple, list, set, frozenset, Mapping, slice, range)


def _origin(value: Any) -> tuple[str, ...] | None:
    """Where a class or function comes from: a module and its version, or a digest of its file; None if neither."""
    module = str(getattr(value, "__module__", ""))
    package = module.partition(".")[0]
    if package in _LIBRARIES:
        return module, _version(package)
    if package in sys.stdlib_module_names and package != "__main__":
        return module, platform.python_version()
    try:
        path = inspect.getsourcefile(value)
        return None if path is None else (_file_digest(path),)
    except (OSError, TypeError):
        return None


@functools.cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(package), "__version__", ""))


@functools.cache
def _file_digest(path: str) -> str:
    """Of the file as it was when first asked for: later edits do not change the code that was loaded."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
