"""Stoker finds what starves a deep-learning pipeline, and feeds it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.analysis.verdict import verdict as verdict
    from stoker.errors import StokerError as StokerError
    from stoker.forecast.predictor import predict as predict
    from stoker.forecast.probe import probe as probe
    from stoker.integrations import lightning, transformers
    from stoker.integrations.watch import watch as watch
    from stoker.machine import inspect

    doctor = inspect
    lightning_callback, transformers_callback = lightning.watch_callback, transformers.watch_callback
    from stoker.marks import stage as stage
    from stoker.measure.profile import profile as profile
    from stoker.memory.limit import LimitRequest as LimitRequest
    from stoker.memory.limit import limit as limit
    from stoker.memory.live import prime as prime
    from stoker.records import Extent as Extent
    from stoker.records import Limit as Limit
    from stoker.records import Machine as Machine
    from stoker.records import Plan as Plan
    from stoker.records import Prediction as Prediction
    from stoker.records import Probes as Probes
    from stoker.records import Ranking as Ranking
    from stoker.records import Setting as Setting
    from stoker.records import Task as Task
    from stoker.records import Trial as Trial
    from stoker.records import WorkloadSpec as WorkloadSpec
    from stoker.records import read as read
    from stoker.studies.converge import converge as converge
    from stoker.studies.search import search as search
    from stoker.studies.sides import compare as compare
    from stoker.studies.study import study as study
    from stoker.tuning.remedies import advise as advise
    from stoker.tuning.tune import tune as tune
    from stoker.workload.data.prepare import prepare as prepare
    from stoker.workload.spec import load as load
    from stoker.workload.workload import Workload as Workload

__version__ = "0.1.0"

_HOMES = {
    "Extent": "stoker.records:Extent",
    "Limit": "stoker.records.answers:Limit",
    "LimitRequest": "stoker.memory.limit:LimitRequest",
    "Machine": "stoker.records:Machine",
    "WorkloadSpec": "stoker.records:WorkloadSpec",
    "Plan": "stoker.records:Plan",
    "Prediction": "stoker.records.answers:Prediction",
    "Probes": "stoker.records.probes:Probes",
    "Ranking": "stoker.records:Ranking",
    "Setting": "stoker.records:Setting",
    "Task": "stoker.records:Task",
    "StokerError": "stoker.errors:StokerError",
    "Trial": "stoker.records:Trial",
    "Workload": "stoker.workload.workload:Workload",
    "advise": "stoker.tuning.remedies:advise",
    "compare": "stoker.studies.sides:compare",
    "converge": "stoker.studies.converge:converge",
    "doctor": "stoker.machine:inspect",
    "lightning_callback": "stoker.integrations.lightning:watch_callback",
    "limit": "stoker.memory.limit:limit",
    "load": "stoker.workload.spec:load",
    "predict": "stoker.forecast.predictor:predict",
    "prepare": "stoker.workload.data.prepare:prepare",
    "prime": "stoker.memory.live:prime",
    "probe": "stoker.forecast.probe:probe",
    "profile": "stoker.measure.profile:profile",
    "read": "stoker.records:read",
    "search": "stoker.studies.search:search",
    "stage": "stoker.marks:stage",
    "study": "stoker.studies.study:study",
    "transformers_callback": "stoker.integrations.transformers:watch_callback",
    "tune": "stoker.tuning.tune:tune",
    "verdict": "stoker.analysis.verdict:verdict",
    "watch": "stoker.integrations.watch:watch",
}
"""Where each public name lives. All that `stoker` exports follows from this table."""

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import stoker` itself loads no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
