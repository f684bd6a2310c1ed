"""The page of a script that was run unchanged: what to change first, then where its time went."""

import shlex

from stoker.analysis.spans import whole
from stoker.errors import InputError
from stoker.records import Proposal, ScriptAnswer, Trial, Verdict
from stoker.report.html import Card, Page, Section, Table
from stoker.report.pages.trial import trial_page
from stoker.units import format_seconds


def script_page(answer: ScriptAnswer, verdict: Verdict | None = None) -> Page:
    """Raises InputError where no loader was observed."""
    if answer.training is None:
        raise InputError("no loader was observed: there are no charts")
    page = trial_page(answer.training, verdict, answer.remedies)
    cards = [*page.cards[:1], *(_card(each) for each in answer.proposals[:1])]
    if answer.headroom is not None:
        found = answer.headroom
        detail = f"{format_seconds(found.before_s)} → {format_seconds(found.after_s)} a batch, replayed from memory"
        cards.append(Card(about="a perfect loader", answer=f"{found.gain:.2f} times as fast", detail=detail))
    sections = list(page.sections)
    rows = [_proposal_row(each) for each in answer.proposals]
    if rows:
        columns = ["setting", "a batch", "predicted", "measured", "how"]
        sections.insert(0, Section("What to change", tables=[Table("", columns, rows)]))
    others = [_trial_row(each) for each in (*answer.ranks, *answer.others)]
    if others:
        columns = ["loader", "data", "rank", "batches", "time", "waiting"]
        sections.append(Section("Other loaders and ranks", tables=[Table("", columns, others)]))
    facts = {"command": shlex.join(answer.command), **page.facts}
    notes = [*page.notes, *answer.notes, *(f"Not observed: {each}" for each in answer.problems)]
    return page._replace(kind="run", cards=[*cards, *page.cards[1:]], sections=sections, facts=facts, notes=notes)


def _card(proposal: Proposal) -> Card:
    places = [edit.sentence for edit in proposal.edits]
    if proposal.arguments:
        places.append(f"add to the command: {shlex.join(proposal.arguments)}")
    detail = "; ".join([_gain_in_words(proposal), *places, *filter(None, [proposal.how])])
    return Card(about="what to change", answer=proposal.remedy.change, detail=detail, code=True)


def _gain_in_words(proposal: Proposal) -> str:
    predicted = f"{proposal.gain:.2f} times as fast, predicted"
    found = proposal.verified.measured_gain if proposal.verified is not None else None
    return predicted if found is None else f"{predicted}; {found:.2f}, measured"


def _proposal_row(proposal: Proposal) -> list[str]:
    remedy, found = proposal.remedy, proposal.verified
    measured = found.measured_gain if found is not None else None
    how = [edit.sentence for edit in proposal.edits]
    how += [f"add {shlex.join(proposal.arguments)}"] if proposal.arguments else []
    how += [proposal.how] if proposal.how else []
    return [
        remedy.change,
        f"{format_seconds(remedy.before_s)} → {format_seconds(remedy.after_s)}",
        f"{proposal.gain:.2f} ×",
        "–" if measured is None else f"{measured:.2f} ×",
        "; ".join(how),
    ]


def _trial_row(trial: Trial) -> list[str]:
    options = trial.task.options if trial.task is not None else {}
    run = whole(trial)
    return [
        f"{options.get('file', '?')}:{options.get('line', '?')}",
        trial.workload.data,
        str(options.get("rank", "–")),
        str(run.batches),
        format_seconds(run.seconds),
        f"{run.share('wait'):.0%}",
    ]
