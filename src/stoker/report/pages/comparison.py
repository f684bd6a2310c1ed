"""The page of a comparison: the answer, and each stage on both sides."""

from stoker.records import Comparison
from stoker.report.html import Card, Page, Section, Table
from stoker.report.views.compare import answer_text, changes_of, notes_of, rows_of, side_text


def sides_page(found: Comparison) -> Page:
    """Whether side B is faster, where, and what else differs."""
    cards = [Card(about="B against A", answer=found.sentence, detail=answer_text(found).partition(": ")[2])]
    cards += [
        Card(about=f"side {name}", answer=f"{side.runs:,} runs", detail=side_text(side))
        for name, side in (("A", found.a), ("B", found.b))
    ]
    head = ["", "A", "B", f"B against A ({found.confidence:.0%} interval)", ""]
    cells = [[row.name, row.a, row.b, row.change, row.answer] for section in rows_of(found) for row in section]
    sections = [Section("Stages", tables=[Table("", head, cells)])]
    remarks = [[text] for text in (*changes_of(found), *notes_of(found))]
    if remarks:
        sections.append(Section("What else to know", tables=[Table("", ["note"], remarks)]))
    facts = {"machine": "; ".join(dict.fromkeys((*found.a.machines, *found.b.machines)))}
    return Page("comparison", found.what, found.sentence, cards, sections, facts)
