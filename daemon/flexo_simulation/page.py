"""Self-contained HTML pages: escaped parts, with style and pictures inside and nothing to fetch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8886; --quiet: #777; --panel: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem } h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem }
h3 { font-size: 1rem; margin: 1.4rem 0 .2rem }
p { max-width: 52rem } .quiet { color: var(--quiet) }
table { border-collapse: collapse; margin: .6rem 0; display: block; overflow-x: auto;
  background: linear-gradient(90deg, Canvas 40%, transparent) left / 3rem 100% no-repeat local,
    linear-gradient(270deg, Canvas 40%, transparent) right / 3rem 100% no-repeat local,
    linear-gradient(90deg, var(--line), transparent) left / 1rem 100% no-repeat scroll,
    linear-gradient(270deg, var(--line), transparent) right / 1rem 100% no-repeat scroll }
th, td { text-align: right; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums }
th:first-child, td:first-child { text-align: left; white-space: pre-wrap }
pre { background: var(--panel); padding: .7rem; overflow-x: auto; white-space: pre-wrap }
.picture { max-width: 100%; height: auto; display: block; margin: .3rem 0 }
.scrolls { overflow-x: auto } .scrolls .picture { min-width: 46rem }
.beside { display: flex; flex-wrap: wrap; gap: 1rem } .beside > * { flex: 1 1 26rem; min-width: 0 }
.warning { border-left: 4px solid #e0803a; padding: .2rem .8rem; background: var(--panel) }
"""
_NO_NETWORK: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(title: str, parts: Iterable[str]) -> str:
    """The whole document; `parts` are HTML already."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_NO_NETWORK}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join([f"<h1>{escape(title)}</h1>", *parts])
        + "\n</body></html>\n"
    )


def heading(text: str, level: int = 2) -> str:
    """A heading within the page."""
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; `kind`: quiet or warning."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def listing(items: Iterable[str]) -> str:
    """A list, one sentence per item."""
    inner = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{inner}</ul>" if inner else ""


def verbatim(text: str) -> str:
    """A command line, verbatim."""
    return f"<pre>{escape(text)}</pre>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of text cells; the first column names the row."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def scrollable(picture: str) -> str:
    """A wide picture. On a narrow screen it is scrolled, so that its labels can be read."""
    return f'<div class="scrolls" tabindex="0" role="region" aria-label="a wide picture">{picture}</div>'


def beside(parts: Iterable[str]) -> str:
    """Parts side by side, if there is room."""
    return '<div class="beside">' + "".join(f"<div>{part}</div>" for part in parts) + "</div>"
