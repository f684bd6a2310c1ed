"""Whether other processes took the CPUs that a run needed."""

from stoker.records import Record, Trial


class InterferenceRules(Record, frozen=True):
    """When other processes make a run's times unreliable."""

    cpus: float = 0.15
    """Other processes may use this many CPUs without disturbing a run: a desktop at rest uses less."""
    idle_cpus: float = 0.5
    """With more CPUs idle than this, other processes were not in the run's way."""


RULES = InterferenceRules()


def disturbed(trial: Trial) -> bool:
    """Whether other processes used CPUs during the run, and left none idle."""
    if trial.interference is None or trial.idle_cpus is None:
        return False
    return trial.interference > RULES.cpus and trial.idle_cpus < RULES.idle_cpus


def disturbance_note(trial: Trial) -> str | None:
    """One sentence where other processes disturbed the run."""
    if not disturbed(trial):
        return None
    return (
        f"other processes used {trial.interference:.1f} CPUs during this run and left none idle: "
        "its times are unreliable"
    )
