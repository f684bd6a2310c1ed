"""Stoker finds what starves a deep-learning pipeline, and feeds it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.errors import StokerError
    from stoker.machine import inspect as doctor
    from stoker.marks import stage
    from stoker.measure.trial import Named, profile
    from stoker.predict.forecast import Prediction as Prediction
    from stoker.predict.forecast import predict
    from stoker.predict.probes import Probes as Probes
    from stoker.records import Extent, Machine, Setting, Trial
    from stoker.tune.inside import prime
    from stoker.tune.limit import Limit, limit
    from stoker.tune.plan import Plan as Plan
    from stoker.tune.plan import tune
    from stoker.tune.probe import probe
    from stoker.workload.definition import Workload
    from stoker.workload.prepare import prepare
    from stoker.workload.source import load

__version__ = "0.1.0"

_HOMES = {
    "Extent": ("stoker.records", "Extent"),
    "Limit": ("stoker.tune.limit", "Limit"),
    "Machine": ("stoker.records", "Machine"),
    "Named": ("stoker.measure.trial", "Named"),
    "Plan": ("stoker.tune.plan", "Plan"),
    "Prediction": ("stoker.predict.forecast", "Prediction"),
    "Probes": ("stoker.predict.probes", "Probes"),
    "Setting": ("stoker.records", "Setting"),
    "StokerError": ("stoker.errors", "StokerError"),
    "Trial": ("stoker.records", "Trial"),
    "Workload": ("stoker.workload.definition", "Workload"),
    "doctor": ("stoker.machine", "inspect"),
    "limit": ("stoker.tune.limit", "limit"),
    "load": ("stoker.workload.source", "load"),
    "predict": ("stoker.predict", ""),
    "prepare": ("stoker.workload.prepare", "prepare"),
    "prime": ("stoker.tune.inside", "prime"),
    "probe": ("stoker.tune.probe", "probe"),
    "profile": ("stoker.measure.trial", "profile"),
    "stage": ("stoker.marks", "stage"),
    "tune": ("stoker.tune", ""),
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
    "predict",
    "prepare",
    "prime",
    "probe",
    "profile",
    "stage",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Bring a public name when it is first asked for: `import stoker` itself loads no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    home = import_module(module)
    return getattr(home, attribute) if attribute else home


def __dir__() -> list[str]:
    return sorted(__all__)
