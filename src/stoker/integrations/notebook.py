"""What a notebook shows: the answer and its first charts, as HTML without scripts. Records find these functions by
name (`stoker.records.base.HTML_RENDERERS`), so that they import nothing from the layers above them."""

from stoker.records import Record
from stoker.studies.study import Study


def record_html(record: Record) -> str:
    """The answer and the charts of a record."""
    from stoker.integrations.reports import page_of
    from stoker.report.html import fragment

    return fragment(page_of(record))


def study_html(study: Study) -> str:
    """The answer and the charts of a study. Raises InputError where its store cannot be read."""
    from stoker.integrations.reports import study_page
    from stoker.report.html import fragment

    return fragment(study_page(study))
