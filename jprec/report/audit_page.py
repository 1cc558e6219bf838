"""The page of an audit: one HTML file with everything in it, made from plain facts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

_TEMPLATES = Path(__file__).parent / "templates"


def audit_page(facts: Mapping[str, Any]) -> str:
    """The page as HTML, with nothing that must be fetched; the same facts give the same page.

    Args:
      facts: What `jprec.doctor.page_facts` returns.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css = "".join(
        (_TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.css", "audit.css")
    )
    return environment.get_template("audit.html.j2").render(**facts, css=Markup(css))
