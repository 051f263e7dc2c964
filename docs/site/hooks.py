"""What mkdocs does besides rendering: the home page, generated parts, files outside docs/, formulas.

Formulas become MathML, which browsers draw by themselves: the site loads nothing from anywhere else.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "packages")]  # this folder and packages/ are no packages

import links  # noqa: E402
import parts  # noqa: E402
from latex2mathml.converter import convert  # noqa: E402

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the README, and what pages link to outside docs/."""
    pages = {f"{links.DOCS}/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    pages["README.md"] = (links.ROOT / "README.md").read_text(encoding="utf-8")
    wanted = {path for page, text in pages.items() for path in links.targets(text, page)}
    outside = {path for path in wanted if not path.startswith(f"{links.DOCS}/")} | {"README.md"}
    for path in sorted(outside):
        if (links.ROOT / path).is_file():
            files.append(File.generated(config, links.on_site(path), abs_src_path=str(links.ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is generated, and let links lead where the site has what they mean."""
    source = Path(str(page.file.abs_src_path)).relative_to(links.ROOT).as_posix()
    return parts.filled(links.rewritten(markdown, source))


def on_page_content(content: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas into MathML."""
    return _FORMULA.sub(_as_mathml, content)


def _as_mathml(match: re.Match[str]) -> str:
    display = "block" if match[1] == "div" else "inline"
    mathml: str = convert(html.unescape(match[2]), display=display)
    return mathml
