"""One candidate of a search: its weights, its blocks, its features, its scores."""

from stoker.events import OnEvent
from stoker.records import CandidateTrial, Task


def run_candidate(task: Task, *, on_event: OnEvent | None = None) -> CandidateTrial:
    """Run one candidate in this process. What becomes of it is the trial's outcome; nothing is raised but interrupts.

    `task.kind` is "search". Its options are `part` (full), `scores` (nleep,logme; empty for none), `classes`, `labels`
    (classes or random), and `batch_size`: "measured" chooses batch size and workers by measuring; otherwise those of
    `task.setting` are used.
    """
    raise NotImplementedError
