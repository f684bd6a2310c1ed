"""Whether a run's threads got the CPUs that they needed, and who had them otherwise."""

from stoker.records import Record, Trial
from stoker.units import format_workers


class InterferenceRules(Record, frozen=True):
    """When other processes, or too many threads, make a run's times unreliable."""

    cpus: float = 0.15
    """Other processes may use this many CPUs without disturbing a run: a desktop at rest uses less."""
    idle_cpus: float = 0.5
    """With more CPUs idle than this, other processes were not in the run's way."""
    delayed_share: float = 0.2
    """From this share of its threads' runnable time on, a run that waits for CPUs says more about the host."""
    delayed: float = 0.25
    """And at least this many threads waited on average: one that sleeps most of the time waits a little each time."""


RULES = InterferenceRules()


def disturbed(trial: Trial) -> bool:
    """Whether other processes used CPUs during the run, and left none idle."""
    if trial.interference is None or trial.idle_cpus is None:
        return False
    return trial.interference > RULES.cpus and trial.idle_cpus < RULES.idle_cpus


def delayed(trial: Trial) -> bool:
    """Whether the run's own threads were ready to run for long, and got no CPU."""
    if trial.run_delay is None or trial.run_delay < RULES.delayed:
        return False
    used = trial.gauges["cpu_cores"].average if "cpu_cores" in trial.gauges else 0.0
    return trial.run_delay > RULES.delayed_share * (trial.run_delay + used)


def own_threads(trial: Trial) -> int:
    """How many threads of the run compute at once: torch's in the loop's process if the step is on the CPU or items are
    loaded there, and those of the workers. Of several ranks, all."""
    setting = trial.setting
    on_cpu = trial.workload.device == "cpu" or not setting.num_workers
    loop = (trial.threads or 1) if on_cpu else 1
    return len(trial.rank_logs or (trial,)) * (loop + setting.num_workers * (setting.worker_threads or 1))


def disturbance_note(trial: Trial) -> str | None:
    """One sentence where other processes, or too many threads of its own, held the run up."""
    if disturbed(trial):
        return (
            f"other processes used {trial.interference:.1f} CPUs during this run and left none idle: "
            "its times are unreliable"
        )
    if not delayed(trial):
        return None
    cpus = trial.machine.cpu.usable if trial.machine is not None else None
    where = "" if cpus is None else f" on {cpus:g} CPUs"
    return (
        f"{own_threads(trial)} threads of this run ({_threads_in_words(trial)}) were busy{where}, and "
        f"{trial.run_delay:.1f} of them waited for a CPU on average: its times say as much about the host"
    )


def thread_change(trial: Trial) -> dict[str, int]:
    """The field of the setting that gives a run fewer threads, with its new value, where its threads wait for CPUs.
    Empty where they do not, or where there is one thread already."""
    if not (disturbed(trial) or delayed(trial)) or own_threads(trial) <= _free_cpus(trial):
        return {}
    threads, setting = trial.threads or 1, trial.setting
    if threads > 1 and (trial.workload.device == "cpu" or not setting.num_workers):
        return {"threads": 1}
    return {"worker_threads": 1} if setting.num_workers and (setting.worker_threads or 1) > 1 else {}


def thread_hint(trial: Trial) -> str | None:
    """What to try where a run's threads wait for CPUs; None where they do not. It has no figure: nothing like it
    ran."""
    changes, setting = thread_change(trial), trial.setting
    if "threads" in changes:
        return (
            f"try one thread instead of {trial.threads} in the loop's process (torch.set_num_threads(1)): the threads "
            "of an operation wait for the one that has no CPU; --verify measures it"
        )
    if "worker_threads" in changes:
        return f"try one thread instead of {setting.worker_threads} in each worker; --verify measures it"
    waits, free = disturbed(trial) or delayed(trial), _free_cpus(trial)
    if waits and own_threads(trial) > free and setting.num_workers > max(1.0, free):
        return f"try fewer than {format_workers(setting.num_workers)}: they share the CPUs that are left"
    return None


def _free_cpus(trial: Trial) -> float:
    """The CPUs that other processes left to the run."""
    cpus = trial.machine.cpu.usable if trial.machine is not None else float("inf")
    return cpus - (trial.interference or 0.0)


def _threads_in_words(trial: Trial) -> str:
    setting = trial.setting
    each = f" of {setting.worker_threads} threads" if (setting.worker_threads or 1) > 1 else ""
    ranks = len(trial.rank_logs or (trial,))
    loop = own_threads(trial) // ranks - setting.num_workers * (setting.worker_threads or 1)
    workers = f", {format_workers(setting.num_workers)}{each}" if setting.num_workers else ""
    return f"{loop} in the loop's process{workers}" + (f", in each of {ranks} ranks" if ranks > 1 else "")
