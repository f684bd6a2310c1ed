"""The text of a record, the same table as on the command line. `str(record)` finds these functions by name.

`stoker.records.base.RENDERERS` names them as strings, so that records import nothing from the layers above them.
"""

import io
import shutil

from rich.console import Console, RenderableType

from stoker.records import (
    CandidateTrial,
    Comparison,
    Convergence,
    Limit,
    Machine,
    MethodComparison,
    Plan,
    Prediction,
    Probes,
    Ranking,
    ScriptAnswer,
    Stalls,
    Trial,
)

_WIDEST = 100
"""Columns at most, as on the command line outside a terminal."""


def trial_text(trial: Trial) -> str:
    """The table of `stoker profile`, with the verdict and the remedies that this trial allows to predict."""
    from stoker.analysis.verdict import verdict
    from stoker.report.views.profile import profile_view
    from stoker.tuning.remedies import advise

    return _text(profile_view(trial, verdict(trial), advise(trial)))


def script_text(answer: ScriptAnswer) -> str:
    """The report of `stoker run`."""
    from stoker.report.views.run import script_view

    return _text(script_view(answer))


def stalls_text(stalls: Stalls) -> str:
    """The table of `stoker profile --stalls`."""
    from stoker.report.views.profile import stalls_view

    return _text(stalls_view(stalls))


def plan_text(plan: Plan) -> str:
    """The table of `stoker tune`."""
    from stoker.report.views.plan import plan_view

    return _text(plan_view(plan))


def limit_text(limit: Limit) -> str:
    """The table of `stoker limit`."""
    from stoker.report.views.limit import limit_view

    return _text(limit_view(limit))


def comparison_text(comparison: MethodComparison) -> str:
    """The table of `stoker limit --compare`."""
    from stoker.report.views.limit import comparison_view

    return _text(comparison_view(comparison))


def prediction_text(prediction: Prediction) -> str:
    """The table of `stoker predict`, without the workload's name, which a prediction does not hold."""
    from stoker.report.views.prediction import prediction_view

    return _text(prediction_view(prediction))


def probes_text(probes: Probes) -> str:
    """The table of `stoker probe`."""
    from stoker.report.views.prediction import probes_view

    return _text(probes_view(probes, None))


def machine_text(machine: Machine) -> str:
    """The table of `stoker doctor`."""
    from stoker.report.views.machine import machine_view

    return _text(machine_view(machine))


def compared_text(comparison: Comparison) -> str:
    """The table of `stoker compare`."""
    from stoker.report.views.compare import compare_view

    return _text(compare_view(comparison))


def convergence_text(convergence: Convergence) -> str:
    """The table of `stoker converge`."""
    from stoker.report.views.convergence import convergence_view

    return _text(convergence_view(convergence))


def candidate_text(trial: CandidateTrial) -> str:
    """One candidate of a search: its stages and its scores."""
    from stoker.report.views.search import candidate_view

    return _text(candidate_view(trial))


def ranking_text(ranking: Ranking) -> str:
    """The tables of `stoker search`."""
    from stoker.report.views.search import ranking_view

    return _text(ranking_view(ranking))


def _text(view: RenderableType) -> str:
    """A view as plain text, at most as wide as the terminal."""
    from stoker.report.console import spaced

    out = io.StringIO()
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    Console(file=out, width=width, highlight=False, color_system=None, force_terminal=False).print(view, crop=False)
    return "\n".join(spaced(out.getvalue()))
