"""One self-contained page: text, tables and pictures in a single file."""

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from progmem.files import write_file

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
img { max-width: 100%; } h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; } td, th { padding: .25rem .8rem; text-align: right; }
th { border-bottom: 1px solid #999; } td:first-child, th:first-child { text-align: left; }
"""


class Section(NamedTuple):
    """A section of the page."""

    title: str
    text: str
    figure: Figure | None = None
    table: Sequence[Sequence[str]] | None = None  # first row: headings


def write_report(path: Path, title: str, lead: str, sections: Sequence[Section]) -> None:
    """Write the page, with its pictures embedded."""
    body = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(lead)}</p>"]
    for section in sections:
        body.append(f"<h2>{html.escape(section.title)}</h2>")
        body.append(f"<p>{html.escape(section.text)}</p>")
        if section.table is not None:
            body.append(_table(section.table))
        if section.figure is not None:
            body.append(_picture(section.figure, section.title))
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}'
        f"</title><style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )
    write_file(path, page.encode())


def _picture(figure: Figure, title: str) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    text = base64.b64encode(data.getvalue()).decode()
    return f'<img alt="{html.escape(title)}" src="data:image/png;base64,{text}">'


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["<tr>" + "".join(f"<th>{html.escape(c)}</th>" for c in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in body]
    return f"<table>{''.join(lines)}</table>"
