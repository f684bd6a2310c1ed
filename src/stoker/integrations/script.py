"""`stoker run`: observes an unchanged script, says what would make it faster, and proves that with reruns."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stoker.analysis.spans import steady, wait_s
from stoker.errors import InputError, Interrupted, StokerError
from stoker.integrations.edits import Site, change_for
from stoker.integrations.launch import collected, command_line, launch, log_directory
from stoker.integrations.logs import RunLog, read_logs
from stoker.integrations.surroundings import Reader
from stoker.integrations.trials import LoaderTrial, Surroundings, trials_of
from stoker.records import Headroom, Proposal, Record, Remedy, ScriptAnswer, Trial, VerifiedRemedy

RERUN = "STOKER_RERUN"
"""The environment variable of a script that is run again to prove a setting."""

Say = Callable[[str], None]


class ScriptRules(Record, frozen=True):
    """What is shown of a run, and how often settings are run beside the present one."""

    settings: int = 2
    """The best few."""
    pairs: int = 2
    """Rounds, forwards and backwards in turns: a drift of the machine affects every setting."""
    rank_share: float = 0.1
    """A rank is shown in place of the first one if it waits longer by more than this share of a batch's time."""


RULES = ScriptRules()


class ScriptRequest(Record, frozen=True):
    """What to run and what to do with it. See `stoker run` in docs/run.md."""

    command: tuple[str, ...]
    batches: int = 200
    stop: bool = False
    verify: bool = False
    headroom: bool = False
    overrides: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batches < 1:
            raise InputError(f"batches must be at least 1, got {self.batches}")


def run_script(
    request: ScriptRequest,
    *,
    say: Say = lambda _: None,
    on_answer: Callable[[ScriptAnswer], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ScriptAnswer:
    """Run the command to its end and answer. `on_answer` also gets what is known when enough batches were seen, in
    another thread while the script goes on. Raises `InputError` for a command that cannot be run; everything else that
    goes wrong with observing is in the answer's `problems`.
    """
    environment = os.environ if environment is None else environment
    command_line(request.command, environment)
    with log_directory() as directory:

        def observed() -> None:
            if on_answer is not None:
                on_answer(_answer(request, directory, reader.surroundings(), None))

        reader = Reader(directory, observed)
        if request.verify:
            runs = (RULES.settings + 1) * RULES.pairs
            say(
                f"--verify: when the script has ended it is run up to {runs} times more, for {request.batches} batches "
                f"each, with {RERUN}=1 in its environment"
            )
        launched = launch(
            request.command,
            directory,
            batches=request.batches,
            stop=request.stop,
            headroom=request.headroom,
            probes=True,
            overrides=request.overrides,
            environment=environment,
            companion=reader,
        )
        answer = _answer(request, directory, reader.surroundings(), launched.status)
        if request.verify and answer.proposals:
            try:
                answer = _verified(request, answer, read_logs(collected(directory)), environment, say)
            except Interrupted:
                answer = msgspec.structs.replace(answer, notes=(*answer.notes, "the verification was interrupted"))
    if on_answer is not None:
        on_answer(answer)
    return answer


# ---------------------------------------------------------------- the answer


def _answer(request: ScriptRequest, directory: Path, around: Surroundings, status: int | None) -> ScriptAnswer:
    """What the logs say. A log that cannot be read is a problem of ours, not of the script."""
    try:
        return answer_of(read_logs(collected(directory)), request.command, around, status=status)
    except StokerError as error:
        problem = str(error)
    except Exception as error:  # the script's exit status is what counts
        problem = f"this should not have happened ({type(error).__name__}: {error})"
    return ScriptAnswer(command=request.command, status=status, problems=(problem,))


def answer_of(
    log: RunLog,
    command: Sequence[str],
    around: Surroundings | None = None,
    *,
    status: int | None = None,
    hints: Sequence[tuple[str, int]] = (),
) -> ScriptAnswer:
    """The answer about a run that was observed. `hints` are lines where a loader may have been made, of which that is
    not known."""
    from stoker.tuning.proposals import propose  # numpy behind these takes longer to import than the script may wait
    from stoker.tuning.remedies import advise

    made = trials_of(log, command, around)
    base = ScriptAnswer(command=tuple(command), status=status, problems=log.problems)
    if not made:
        return msgspec.structs.replace(base, notes=(_nothing(log),))
    first = _slowest(made)
    rest = [each for each in made if each is not first]
    ranks = [each for each in rest if each.process is not first.process and each.loader is each.process.training]
    others = [each for each in rest if each.process is first.process]
    site = site_of_loader(first, hints)
    loads = trials_of(RunLog(processes=log.probes), command, around)
    proposals = tuple(_proposal(site, remedy) for remedy in propose(first.trial, *(each.trial for each in loads)))
    loader = {"num_workers", "prefetch_factor", "persistent_workers"}
    remedies = [
        each for each in advise(first.trial) if not loader & set(each.changes) and "batch_size" not in each.changes
    ]
    return msgspec.structs.replace(
        base,
        training=first.trial,
        ranks=tuple(each.trial for each in ranks),
        others=tuple(each.trial for each in others),
        proposals=proposals,
        remedies=tuple(remedies),
        headroom=_headroom(first),
    )


def _slowest(made: Sequence[LoaderTrial]) -> LoaderTrial:
    """The first trial; of several ranks that train, the one that clearly waits longest for data. The others wait for it
    in their steps."""
    ranks = [each for each in made if each.loader is each.process.training]
    if len(ranks) < 2:
        return made[0]
    slowest = max(ranks, key=lambda each: wait_s(each.trial))
    more_s = wait_s(slowest.trial) - wait_s(ranks[0].trial)
    return slowest if more_s > RULES.rank_share * (pace_s(ranks[0].trial) or 0.0) else ranks[0]


def _nothing(log: RunLog) -> str:
    """Why there is no trial."""
    if not log.processes:
        return (
            "no DataLoader was read: the script makes none, or Python was told to ignore its environment (-I, -E, -S)"
        )
    return "no DataLoader was read for more than one batch"


def _proposal(site: Site, remedy: Remedy) -> Proposal:
    change = change_for(site, remedy.changes)
    return Proposal(remedy=remedy, edits=change.edits, arguments=change.arguments, how=change.how)


def site_of_loader(first: LoaderTrial, hints: Sequence[tuple[str, int]] = ()) -> Site:
    """Where the loader was made: of one that a framework replaced, the user's own. Where that is not known, the hints
    and where it is read."""
    loader, process = first.loader, first.process
    made = next((each for each in process.loaders if each.number == loader.source), loader)
    known = bool(made.site)
    frames = tuple((file, line) for file, line, _ in made.site or made.read_at)
    frames = frames if known else (*hints, *frames)
    return Site(frames=frames, made_by=made.made_by, script=process.script, known=known)


def _headroom(first: LoaderTrial) -> Headroom | None:
    before_s = pace_s(first.trial)
    if before_s is None or not first.process.replay_s:
        return None
    return Headroom(before_s=before_s, step_s=first.process.replay_s)


# ---------------------------------------------------------------- the proof


def _verified(
    request: ScriptRequest, answer: ScriptAnswer, log: RunLog, environment: Mapping[str, str], say: Say
) -> ScriptAnswer:
    """The answer with what the best settings took in reruns, in alternation with the present one."""
    first = _slowest(trials_of(log, request.command))
    tried = answer.proposals[: RULES.settings]
    settings: list[dict[str, Any]] = [{}, *(each.remedy.changes for each in tried)]
    took: list[list[float]] = [[] for _ in settings]
    problems: list[str | None] = [None] * len(settings)
    sites = () if first.loader.made_by else tuple(f"{file}:{line}" for file, line, _ in first.loader.site[:1])
    runs = len(settings) * RULES.pairs
    number = 0
    for pair in range(RULES.pairs):
        places = range(len(settings))
        for place in places if pair % 2 == 0 else reversed(places):
            number += 1
            words = answer.proposals[place - 1].remedy.change if place else "the present setting"
            say(f"--verify: run {number} of {runs}, {words}")
            changes = {**request.overrides, **settings[place]}
            found, problem = _rerun(request, changes, sites, environment)
            if found is None:
                problems[place] = problem
            else:
                took[place].append(found)
    proposals = []
    for place, each in enumerate(tried, start=1):
        pairs = min(len(took[0]), len(took[place]))
        verified = VerifiedRemedy(
            remedy=each.remedy,
            before_s=tuple(took[0][:pairs]),
            after_s=tuple(took[place][:pairs]),
            problem=problems[place] or problems[0],
        )
        proposals.append(msgspec.structs.replace(each, verified=verified))
    proposals += answer.proposals[len(tried) :]
    return msgspec.structs.replace(answer, proposals=tuple(proposals))


def _rerun(
    request: ScriptRequest, overrides: dict[str, Any], sites: Sequence[str], environment: Mapping[str, str]
) -> tuple[float | None, str | None]:
    """Seconds of one batch of the training loader in a run of its own; or why there is none."""
    with log_directory() as directory:
        done = launch(
            request.command,
            directory,
            batches=request.batches,
            stop=True,
            overrides=overrides,
            sites=sites,
            environment={**environment, RERUN: "1"},
            output="dropped",
        )
        made = trials_of(read_logs(done.logs), request.command)
    if not made:
        return None, f"the rerun read no loader and ended with status {done.status}"
    seconds = pace_s(made[0].trial)
    return (seconds, None) if seconds is not None else (None, "the rerun had too few batches to tell its pace")


def pace_s(trial: Trial) -> float | None:
    """Seconds of a batch once steady."""
    span = steady(trial)
    return span.seconds / span.batches if span is not None else None
