"""What each kind of result shows on its page: the answer first, then charts whose titles are findings."""

from stoker.report.pages.comparison import sides_page
from stoker.report.pages.convergence import convergence_page
from stoker.report.pages.limit import comparison_page, limit_page
from stoker.report.pages.machine import machine_page
from stoker.report.pages.plan import interrupted_page, plan_page
from stoker.report.pages.prediction import prediction_page
from stoker.report.pages.ranking import ranking_page
from stoker.report.pages.script import script_page
from stoker.report.pages.study import study_page
from stoker.report.pages.trial import stalls_page, trial_page

__all__ = [
    "comparison_page",
    "convergence_page",
    "interrupted_page",
    "limit_page",
    "machine_page",
    "plan_page",
    "prediction_page",
    "ranking_page",
    "script_page",
    "sides_page",
    "stalls_page",
    "study_page",
    "trial_page",
]
