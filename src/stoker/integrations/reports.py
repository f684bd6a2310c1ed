"""Pages of saved results and of studies: what the charts need beyond the records is computed here."""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.errors import InputError
from stoker.records import (
    Comparison,
    Convergence,
    InterruptedTune,
    Limit,
    Machine,
    MethodComparison,
    Plan,
    Prediction,
    Probes,
    Ranking,
    Record,
    ScriptAnswer,
    Stalls,
    Trial,
    read,
)
from stoker.report.html import Page
from stoker.studies.study import Study, stored_study

if TYPE_CHECKING:
    import polars as pl

    from stoker.report.pages.study import Against

PUBLISHED = "published"
"""The name that stands for the figures of the seeds' authors."""


class LiveRules(Record, frozen=True):
    """How often the page of a running study is written."""

    every_s: float = 60.0
    """Once a minute: a page takes seconds of one core, and a study runs for hours."""
    share: float = 0.02
    """Of the time at most this goes into pages, however large they become."""
    reload_s: int = 60
    """After how long a page that is open loads the next one."""


LIVE = LiveRules()


def page_of(record: Record) -> Page:
    """The page of any saved record. Raises InputError for one that has no charts."""
    from stoker.report import pages

    match record:
        case Trial():
            return _trial_page(record)
        case ScriptAnswer():
            return script_page(record)
        case Stalls():
            return pages.stalls_page(record)
        case Plan():
            return pages.plan_page(record)
        case InterruptedTune():
            return pages.interrupted_page(record)
        case Limit():
            return pages.limit_page(record)
        case MethodComparison():
            return pages.comparison_page(record)
        case Comparison():
            return pages.sides_page(record)
        case Prediction():
            return pages.prediction_page(None, (), record)
        case Probes():
            return probes_page(record)
        case Machine():
            return pages.machine_page(record)
        case Convergence():
            return pages.convergence_page(record)
        case Ranking():
            return pages.ranking_page(record)
    raise InputError(f"a {type(record).__name__.lower()} has no report")


def _trial_page(trial: Trial) -> Page:
    from stoker.analysis.verdict import verdict
    from stoker.report.pages import trial_page
    from stoker.tuning.remedies import advise

    return trial_page(trial, verdict(trial), advise(trial))


def script_page(answer: ScriptAnswer) -> Page:
    """The page of a script that was run. Raises InputError where no loader was observed."""
    from stoker.analysis.verdict import verdict
    from stoker.report import pages

    return pages.script_page(answer, verdict(answer.training) if answer.training is not None else None)


def plan_page(plan: Plan, probes: Probes | None = None, machine: Machine | None = None) -> Page:
    """The page of a plan. With the probes that it was made from, it shows the prediction of every setting."""
    from stoker.report import pages

    found = _landscape(probes, plan.objective.items, plan.objective.epochs) if probes else []
    return pages.plan_page(plan, landscape=found, machine=machine)


def probes_page(probes: Probes, asked: Prediction | None = None) -> Page:
    """The page of probes: every setting that they allow to predict, and the one that was `asked` for."""
    from stoker.forecast.predictor import items_of
    from stoker.report.pages import prediction_page

    items, epochs = (asked.items, asked.epochs) if asked else (items_of(probes), 1)
    return prediction_page(probes, _landscape(probes, items, epochs), asked)


def _landscape(probes: Probes, items: int, epochs: int) -> list[Prediction]:
    from stoker.forecast.predictor import Predictor, landscape

    return landscape(Predictor(probes), items, epochs=epochs)


def page_from(source: str, *, db: Path, against: str | None = None) -> Page:
    """The page of a study's name in a store, of a saved record, or of trials that `study export` wrote as JSON.

    Raises InputError where `source` is none of these.
    """
    path = Path(source)
    if path.suffix == ".json" or path.is_file():
        frame = _exported(path)
        if frame is not None:
            return frame_page(frame[1], name=frame[0], against=_others(against, db, frame[1]))
        if against is not None:
            raise InputError("--against compares studies; give the name of a study")
        return page_of(read(path))
    found = stored_study(source, db)
    return study_page(found, against=_of_study(found, against, db))


def frame_page(frame: "pl.DataFrame", *, name: str, against: Sequence["Against"] = ()) -> Page:
    """The page of a trials frame that belongs to no store."""
    from stoker.report.pages.study import StudyAbout
    from stoker.report.pages.study import study_page as build

    return build(frame, StudyAbout(name=name), against=against)


def _exported(path: Path) -> tuple[str, "pl.DataFrame"] | None:
    """The study's name and the trials of an exported file; None for any other document."""
    try:
        document = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if not isinstance(document, dict) or document.get("kind") != "trials":
        return None
    import polars as pl

    rows = document.get("trials")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} holds no trials")
    plain = [{name: value for name, value in row.items() if name != "record"} for row in rows]
    try:
        frame = pl.DataFrame(plain, infer_schema_length=None)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path} holds trials that make no table: {error}") from None
    return str(document.get("study") or path.stem), frame


# ---------------------------------------------------------------- studies


def study_page(
    study: Study,
    *,
    against: Sequence["Against"] | None = None,
    reload_s: int | None = None,
    done: int | None = None,
    of: int | None = None,
    left_s: float | None = None,
) -> Page:
    """The page of a study. Without `against`, a preset is shown beside its published figures where there are any."""
    from stoker.analysis.frames import of_one_kind
    from stoker.analysis.overview import sample_keys
    from stoker.report.pages.study import StudyAbout
    from stoker.report.pages.study import study_page as build
    from stoker.studies.tables import kind_shown

    frame = study.trials()
    about = StudyAbout(
        name=study.name,
        title=study.grid.title,
        kind=kind_shown(study.grid.kind, frame),
        about=study.grid.about,
        machines=study.machines(),
        done=done,
        of=of,
        left_s=left_s,
    )
    samples: list[Trial] = []
    if about.kind == "profile" and reload_s is None and {"workload", "outcome"} <= set(frame.columns):
        samples = _samples(study, sample_keys(of_one_kind(frame)))
    others = published_beside(study.name, frame) if against is None else against
    return build(frame, about, against=others, samples=samples, reload_s=reload_s)


def _samples(study: Study, keys: Sequence[str]) -> list[Trial]:
    """The last attempt at each of these tasks, with its raw samples, where the store keeps them."""
    documents = {row.key: row.document for row in study.rows(documents=True, keys=keys) if row.document}
    found = [_trial(documents[key]) for key in keys if key in documents]
    return [trial for trial in found if trial is not None]


def _trial(document: bytes) -> Trial | None:
    from stoker.records import parse

    record = parse(document)
    return record if isinstance(record, Trial) else None


def _of_study(study: "Study", against: str | None, db: Path) -> list["Against"] | None:
    """What a study is compared with; None leaves the choice to its page."""
    if against is None:
        return None
    if against == PUBLISHED and study.grid.kind == "search":
        return [_published(_SEARCH)]
    return _others(against, db, study.trials())


def _others(against: str | None, db: Path, frame: "pl.DataFrame") -> list["Against"]:
    """The study of that name, or all published figures that these trials have settings in common with."""
    from stoker.analysis.overview import compared_rows
    from stoker.report.pages.study import Against

    if against is None:
        return []
    if against == PUBLISHED:
        from stoker.analysis.published import BY_PRESET

        tables = [_published(name) for name in BY_PRESET if name != _SEARCH]
        return [each for each in tables if frame.height and compared_rows(frame, each.frame)] or tables[:1]
    other = stored_study(against, db)
    machines = "; ".join(sorted(set(other.machines().values())))
    return [Against(name=against, frame=other.trials(), about=f"The store has trials of these machines: {machines}.")]


def published_beside(study: str, frame: "pl.DataFrame") -> list["Against"]:
    """The published figures of the preset of this name, where the trials have settings in common with them."""
    from stoker.analysis.breakdown import beside
    from stoker.analysis.overview import compared_rows
    from stoker.analysis.published import BY_PRESET

    name = study.removesuffix("-small")
    if name not in BY_PRESET or not frame.height or "workload" not in frame.columns:
        return []
    found = _published(name)
    if name == _SEARCH:
        return [found] if beside(frame, found.frame).height else []
    return [found] if compared_rows(frame, found.frame) else []


_SEARCH = "search-bottlenecks"


def _published(name: str) -> "Against":
    from stoker.analysis import published
    from stoker.report.pages.study import Against

    about = (
        f"There: {published.MACHINE}. Their images are Imagenette's; Stoker's presets have synthetic ones. "
        f"Source: {published.SOURCE}."
    )
    if name == "data-loading":
        about += " Their times are the sum of all waits, ours those of the whole run."
    if name == "max-batch":
        about += " They tried powers of two only."
    if name == _SEARCH:
        about += " Each of their runs was done once; their split `75` is `last:25%` here."
    return Against(name=f"the published {name}", frame=published.BY_PRESET[name](), about=about)


def write_study(
    study: Study,
    path: str | Path,
    *,
    png: str | Path | None = None,
    svg: str | Path | None = None,
    against: str | None = None,
) -> Path:
    """Write a study's page, and its charts as pictures into folders where asked."""
    from stoker.report.files import write_page, write_pictures

    page = study_page(study, against=_of_study(study, against, study.store_path))
    write_page(page, Path(path))
    for folder, kind in ((png, "png"), (svg, "svg")):
        if folder is not None:
            write_pictures(page, Path(folder), kind)
    return Path(path)


class LiveReport:
    """Writes the page of a running study between its trials, and a last time at its end."""

    def __init__(
        self, study: Study, path: Path, *, rules: LiveRules = LIVE, clock: Callable[[], float] = monotonic
    ) -> None:
        self._study, self._path, self._rules, self._clock = study, path, rules, clock
        self._next_at = clock()

    def update(self, progress: Any) -> None:
        """Write the page if it is due. `progress` has the runs that are done, how many there are, and the time left."""
        began = self._clock()
        if began < self._next_at:
            return
        from stoker.report.files import write_page

        page = study_page(
            self._study,
            against=(),
            reload_s=self._rules.reload_s,
            done=progress.done,
            of=progress.of,
            left_s=progress.left_s,
        )
        write_page(page, self._path)
        ended = self._clock()
        self._next_at = ended + max(self._rules.every_s, (ended - began) / self._rules.share)

    def finish(self) -> None:
        """Write the page of the study as it is now; it no longer reloads itself."""
        write_study(self._study, self._path)
