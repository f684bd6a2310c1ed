"""A simulated CUDA device: real dispatch, autocast and optimizers over fake tensors, in a process of its own.

Forward passes work on fake CUDA tensors without help. Backward passes fail inside the engine, which asks the device for
a stream. With a dummy backend registered, autograd's nodes carry no stream, and while the engine runs, tensors claim to
be on `meta`. All of this uses private interfaces of torch. `install` runs once, in a child process that does nothing
else, because registering the backend breaks autograd on a real GPU.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.backend_registration
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from stoker.errors import MachineError
from stoker.memory.trace import guards

CUDA = torch.device("cuda", 0)
META = torch.device("meta")
_LARGE_NUMEL = 4096
"""Constructors only read values of tensors that are smaller than this."""
_BACKEND = "stoker_trace"
_FILLS = frozenset(
    (
        "normal_",
        "uniform_",
        "fill_",
        "zero_",
        "erfinv_",
        "mul_",
        "add_",
        "sub_",
        "div_",
        "clamp_",
        "bernoulli_",
        "random_",
    )
)
_MAKERS = frozenset(
    ("zeros", "ones", "randn", "rand", "full", "empty", "zeros_like", "ones_like", "empty_like", "randn_like")
)


_COPIES = frozenset(("_to_copy", "clone"))


class Engine:
    """The state of autograd's engine: None, `root` until its first node runs, `inside` after that."""

    state: str | None = None


def install(*, backward: bool) -> None:
    """Make torch in this process accept fake CUDA tensors as real ones; with `backward`, in backward passes too."""
    if backward:
        _register_backend()
    guards.silence()
    FakeTensorMode.avoid_device_init = property(lambda mode: True)  # type: ignore[method-assign,assignment]
    torch.cuda.is_bf16_supported = lambda *args, **kwargs: True
    amp: Any = torch.cuda.amp.common
    amp.amp_definitely_not_available = lambda: False
    scaler: Any = torch.amp.GradScaler
    scaler._maybe_opt_step = _step_with_finite_gradients
    optimizers: Any = importlib.import_module("torch.optim.optimizer")
    if FakeTensor not in optimizers._foreach_supported_types:
        optimizers._foreach_supported_types.append(FakeTensor)
    _watch_engine()


def _step_with_finite_gradients(scaler: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    """Whether a gradient was infinite is a value that only a run has. The update takes the memory, so make it."""
    return optimizer.step(*args, **kwargs)


def _register_backend() -> None:
    """With a backend of this kind registered, autograd's nodes ask for no stream."""
    register = getattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend", None)
    if register is not None:
        register(_BACKEND)
    elif not guards.register_backend(_BACKEND):
        raise MachineError(
            f"following a training step without a GPU needs a newer torch than {torch.__version__}; "
            "upgrade it, or use --mode infer"
        )


def _watch_engine() -> None:
    autograd: Any = torch.autograd
    run = autograd._engine_run_backward
    tensor_module: Any = torch.autograd.graph

    def watched(*args: Any, **kwargs: Any) -> Any:
        before, Engine.state = Engine.state, "root"
        try:
            with autograd.set_multithreading_enabled(False):  # the engine must not use a thread for the device
                return run(*args, **kwargs)
        finally:
            Engine.state = before

    autograd._engine_run_backward = watched
    if hasattr(tensor_module, "_engine_run_backward"):
        tensor_module._engine_run_backward = watched


class LazyBuild(TorchDispatchMode):
    """Builds a model on the CPU without touching the pages of its large tensors: they are zeros that are never filled.

    Some constructors read values, so a model cannot be built on a fake device; but they only read small tensors.
    """

    def __init__(self) -> None:
        mode: Any = super()
        mode.__init__()
        self._lazy: dict[int, Any] = {}
        """The pages of every lazy tensor by address. As long as they are held, no other tensor has that address."""

    def __exit__(self, *args: Any) -> None:
        self._lazy.clear()
        mode: Any = super()
        mode.__exit__(*args)

    def _is_lazy(self, tensor: Any) -> bool:
        return (
            isinstance(tensor, torch.Tensor)
            and tensor.device.type == "cpu"
            and tensor.numel() > _LARGE_NUMEL
            and tensor.untyped_storage().data_ptr() in self._lazy
        )

    def _copied(self, tensor: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor | None:
        """A lazy tensor cast or copied on the host, in plain layout: as lazy as it was."""
        if not tensor.is_contiguous() or kwargs.get("memory_format") in (torch.channels_last, torch.channels_last_3d):
            return None
        return self._zeros(tensor, kwargs)

    def _zeros(self, like: Any, kwargs: dict[str, Any]) -> torch.Tensor | None:
        made = _lazy_zeros(like, kwargs)
        if made is None:
            return None
        tensor, pages = made
        self._lazy[tensor.data_ptr()] = pages
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._overloadpacket.__name__
        if name in _FILLS and args[0].numel() > _LARGE_NUMEL:
            return args[0]
        made = None
        if name in _MAKERS and not kwargs.get("memory_format"):
            made = self._zeros(args[0], kwargs)
        elif name in _COPIES and self._is_lazy(args[0]):
            made = self._copied(args[0], kwargs)
        elif name == "copy_" and self._is_lazy(args[0]):
            made = args[0]  # nobody reads what a lazy tensor holds
        if made is not None:
            return made
        return func(*args, **kwargs)


def _lazy_zeros(like: Any, kwargs: dict[str, Any]) -> tuple[torch.Tensor, Any] | None:
    """A large float tensor on untouched pages, and these; None if it is small or of another kind."""
    import mmap

    is_tensor = isinstance(like, torch.Tensor)
    shape = tuple(like.shape) if is_tensor else tuple(like)
    dtype = kwargs.get("dtype") or (like.dtype if is_tensor else torch.get_default_dtype())
    device = kwargs.get("device") or (like.device if is_tensor else torch.get_default_device())
    numel = 1
    for side in shape:
        numel *= side
    if numel <= _LARGE_NUMEL or not dtype.is_floating_point or torch.device(device).type != "cpu":
        return None
    # Without a reservation, because a model may be larger than the host's memory: its pages are never touched.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    pages = mmap.mmap(-1, numel * dtype.itemsize, flags=flags)
    return torch.frombuffer(pages, dtype=dtype).view(*shape), pages


def to_fake_cuda(
    model: torch.nn.Module, on_made: Callable[[torch.Tensor], None], *, channels_last: bool = False
) -> torch.nn.Module:
    """Replace a model's tensors by fake CUDA tensors, in the order of `Module.to`; shared tensors stay shared.

    With `channels_last`, a second pass makes tensors of four dimensions again, as users' code does.
    """
    _replace(model, on_made, lambda tensor: tensor.stride())
    if channels_last:
        _replace(model, on_made, lambda tensor: last_strides(tensor.shape) if tensor.dim() == 4 else None)
    return model


def _replace(
    model: torch.nn.Module,
    on_made: Callable[[torch.Tensor], None],
    strides: Callable[[torch.Tensor], tuple[int, ...] | None],
) -> None:
    """Make every tensor of a model again with other strides, except those for which `strides` gives None."""
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for module in _children_first(model):
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                stride = None if tensor is None else strides(tensor)
                if tensor is None or stride is None:
                    continue
                if id(tensor) not in made:
                    made[id(tensor)] = (tensor, _stand_in(tensor, stride))
                    on_made(made[id(tensor)][1])
                tensors[name] = made[id(tensor)][1]  # type: ignore[assignment]


def _stand_in(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The fake tensor. A parameter stays the same object, as in `Module.to`: an optimizer may hold it already."""
    fake = _fake(tensor, stride)
    if isinstance(tensor, torch.nn.Parameter):
        try:
            torch.utils.swap_tensors(tensor, fake)
        except (RuntimeError, AttributeError, TypeError):  # held in a way that cannot be swapped
            return fake
        return tensor
    return fake


def _children_first(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for child in model.children():
        yield from _children_first(child)
    yield model


def _fake(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    fake = fresh(tensor.shape, tensor.dtype, stride)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(fake, tensor.requires_grad)
    return fake


def last_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a batch of images in channels-last layout."""
    _, channels, height, width = shape
    return height * width * channels, 1, width * channels, channels


class _Current:
    mode: FakeTensorMode | None = None


@contextmanager
def fake_tensors() -> Iterator[FakeTensorMode]:
    """The mode under which `fresh` and `viewed` make fake tensors."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        _Current.mode = mode
        yield mode


def fresh(shape: Iterable[int], dtype: torch.dtype, stride: Iterable[int] | None = None) -> torch.Tensor:
    """A new fake CUDA tensor, made by hand in a twentieth of the time that torch needs."""
    with no_dispatch():
        if stride is None:
            element = torch.empty(tuple(shape), dtype=dtype, device=META)
        else:
            element = torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device=META)
    assert _Current.mode is not None
    return FakeTensor(_Current.mode, element, CUDA)


def viewed(func: Any, args: Any, kwargs: Any) -> Any:
    """One or several views of a fake tensor's memory."""
    mode = _Current.mode
    assert mode is not None
    with in_kernel_invocation_manager(mode):
        made = func(*args, **kwargs)
    if isinstance(made, torch.Tensor):
        return FakeTensor(mode, made, args[0].fake_device)
    return [FakeTensor(mode, one, args[0].fake_device) for one in made]
