"""Stoker finds what starves a deep-learning pipeline, and feeds it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.errors import StokerError
    from stoker.machine import inspect as doctor
    from stoker.marks import stage
    from stoker.measure.trial import Named, profile
    from stoker.records import Extent, Machine, Setting, Trial
    from stoker.tune.inside import prime
    from stoker.tune.limit import Limit, limit
    from stoker.workload.definition import Workload
    from stoker.workload.prepare import prepare
    from stoker.workload.source import load

__version__ = "0.1.0"

_HOMES = {
    "Extent": ("stoker.records", "Extent"),
    "Limit": ("stoker.tune.limit", "Limit"),
    "Machine": ("stoker.records", "Machine"),
    "Named": ("stoker.measure.trial", "Named"),
    "Setting": ("stoker.records", "Setting"),
    "StokerError": ("stoker.errors", "StokerError"),
    "Trial": ("stoker.records", "Trial"),
    "Workload": ("stoker.workload.definition", "Workload"),
    "doctor": ("stoker.machine", "inspect"),
    "limit": ("stoker.tune.limit", "limit"),
    "load": ("stoker.workload.source", "load"),
    "prepare": ("stoker.workload.prepare", "prepare"),
    "prime": ("stoker.tune.inside", "prime"),
    "profile": ("stoker.measure.trial", "profile"),
    "stage": ("stoker.marks", "stage"),
}
__all__ = [
    "Extent",
    "Limit",
    "Machine",
    "Named",
    "Setting",
    "StokerError",
    "Trial",
    "Workload",
    "__version__",
    "doctor",
    "limit",
    "load",
    "prepare",
    "prime",
    "profile",
    "stage",
]


def __getattr__(name: str) -> Any:
    """Bring a public name when it is first asked for: `import stoker` itself loads no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
