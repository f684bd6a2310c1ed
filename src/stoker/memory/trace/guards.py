"""Torch's table of device guards, changed by hand: code in C++ asks for device and stream even of fake tensors.

A CPU build of torch has no guard for CUDA, and a CUDA build may call the driver. The guard of `meta` does nothing, so
it replaces that of CUDA. Torch before 2.11 also cannot register a backend from Python: there, a copy of the `meta`
guard that calls itself another device stands for one. All of this is for a process that does nothing else. If the
tables are not found, nothing is changed.
"""

import ctypes
from pathlib import Path
from typing import Any

import torch

_C10, _TORCH = "*c10.*", "*torch_cpu.*"
_GUARDS_SYMBOL = "_ZN3c104impl26device_guard_impl_registryE"
_HOOKS_SYMBOL = "_ZN2at33RegisterPrivateUse1HooksInterfaceEPNS_25PrivateUse1HooksInterfaceE"
_CUDA, _META, _PRIVATE = 1, 14, 20
"""Positions in the table of guards, as in torch's `DeviceType`."""
_GUARD_METHODS, _HOOK_METHODS = 24, 64
_TYPE_METHOD, _COUNT_METHOD = 0, 14
"""The methods of a guard that return its device type and the number of devices."""
_Answer = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_referenced: list[Any] = []
"""C++ points to these objects, so they must not be collected."""


def silence() -> bool:
    """Replace CUDA's guard by one that does nothing; False if torch's table was not found."""
    guards = _guards()
    if guards is None:
        return False
    guards[_CUDA] = guards[_META]
    return True


def register_backend(name: str) -> bool:
    """Register a backend with one device, as autograd's engine needs it; False if torch's tables were not found."""
    guards = _guards()
    register = getattr(_library(_TORCH), _HOOKS_SYMBOL, None)
    if guards is None or register is None:
        return False
    guards[_PRIVATE] = _copied_guard(guards[_META])
    nothing = _method(0)
    register.argtypes, register.restype = [ctypes.c_void_p], None
    register(_object([nothing] * _HOOK_METHODS))
    torch.utils.rename_privateuse1_backend(name)
    return True


def _library(pattern: str) -> Any:
    found = sorted((Path(torch.__file__).parent / "lib").glob(pattern))
    return ctypes.CDLL(str(found[0])) if found else None


def _guards() -> Any:
    library = _library(_C10)
    try:
        return (ctypes.c_void_p * (_PRIVATE + 1)).in_dll(library, _GUARDS_SYMBOL) if library else None
    except ValueError:
        return None


def _copied_guard(address: int) -> int:
    table = ctypes.cast(ctypes.c_void_p.from_address(address).value or 0, ctypes.POINTER(ctypes.c_void_p))
    methods = [table[place] or 0 for place in range(_GUARD_METHODS)]
    methods[_TYPE_METHOD], methods[_COUNT_METHOD] = _method(_PRIVATE), _method(1)
    return _object(methods)


def _method(answer: int) -> int:
    function = _Answer(lambda _: answer)
    _referenced.append(function)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _object(methods: list[int]) -> int:
    """The address of a C++ object that has only these virtual methods."""
    table = (ctypes.c_void_p * len(methods))(*methods)
    made = (ctypes.c_void_p * 8)(ctypes.addressof(table))
    _referenced.extend((table, made))
    return ctypes.addressof(made)
