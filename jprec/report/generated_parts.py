"""Parts of a Markdown page that a program makes.

A part stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->`.
"""

import re
from collections.abc import Mapping, Sequence

_PART = re.compile(r"(?s)(<!-- generated: ([^\n]*?) -->\n).*?(<!-- end: \2 -->)")


def generated_parts(page: str) -> list[str]:
    """The names of the generated parts of the page, in order."""
    return [part[2] for part in _PART.finditer(page)]


def renewed(page: str, made: Mapping[str, str]) -> str:
    """The page with its generated parts replaced by what was made for them.

    Raises:
      KeyError: for a part that was not made.

    >>> renewed("<!-- generated: n -->\\nold\\n<!-- end: n -->", {"n": "new"})
    '<!-- generated: n -->\\nnew\\n<!-- end: n -->'
    """
    return _PART.sub(lambda part: f"{part[1]}{made[part[2]]}\n{part[3]}", page)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; columns whose heading ends in ":" are set to the right.

    >>> print(markdown_table(["arm", "n:"], [["fp32", "16"]]))
    | arm | n |
    |---|---:|
    | fp32 | 16 |
    """
    lines = [
        f"| {' | '.join(h.removesuffix(':') for h in head)} |",
        f"|{'|'.join('---:' if h.endswith(':') else '---' for h in head)}|",
    ]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
