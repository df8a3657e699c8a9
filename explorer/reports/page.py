"""A report as HTML: one page without scripts and without a reference to anything outside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

import polars as pl

from embstore.store import Store
from embstore_explorer.reports.section import Picture, Section, Sentences, Table

CODE = re.compile(r"`([^`]+)`")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STYLE = """
:root { color-scheme: light dark; --text: #1b1b1f; --back: #fff; --soft: #5c5c66; --line: #d9d9de; --box: #f5f5f7;
  --mark: #fff0c2; --accent: #00558c; }
@media screen and (prefers-color-scheme: dark) { :root { --text: #ececf0; --back: #18181b; --soft: #a9a9b5;
  --line: #3b3b42; --box: #232328; --mark: #574400; --accent: #7cc4f5; }
  [style*="stroke: #0072b2"] { stroke: #4aa8e0 !important; } [style*="fill: #0072b2"] { fill: #4aa8e0 !important; } }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem; font: 1rem/1.55 system-ui, sans-serif; color: var(--text);
  background: var(--back); }
h1 { font-size: 1.7rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1.3rem; margin: 0 0 .4rem; }
h3 { font-size: 1rem; margin: 1.1rem 0 .2rem; } a { color: var(--accent); } summary { cursor: pointer; }
.soft, figcaption, caption, summary, .method { color: var(--soft); font-size: .9rem; }
section { border-top: 1px solid var(--line); margin-top: 2rem; padding-top: 1.4rem; }
* { box-sizing: border-box; } .finding { font-size: 1.08rem; max-width: 46rem; } .method { max-width: 46rem; }
nav ol, ul { padding-left: 1.3rem; } li { margin: .25rem 0; }
.blocks { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; align-items: flex-start; } .wide { flex: 1 1 100%; }
figure { margin: .6rem 0; max-width: 100%; } figure svg { max-width: 100%; height: auto; display: block; zoom: 1.25; }
.scroll { overflow-x: auto; max-width: 100%; } caption { text-align: start; padding-bottom: .3rem;
  max-width: calc(100vw - 3rem); }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .8rem .22rem 0; border-bottom: 1px solid var(--line); text-align: start; vertical-align: top;
  overflow-wrap: break-word; max-width: 42rem; }
th { font-weight: 600; } .number { text-align: end; white-space: nowrap; }
.sentences p { margin: .25rem 0; padding-inline-start: .8rem; border-inline-start: 3px solid var(--line); }
.sentences { overflow-wrap: anywhere; } mark { background: var(--mark); color: inherit; font-weight: 600; }
pre { background: var(--box); padding: .7rem .9rem; overflow-x: auto; font-size: .82rem; border-radius: .3rem; }
.problem { background: var(--box); padding: .6rem .9rem; border-radius: .3rem; }
@media screen and (max-width: 46rem) { figure { overflow-x: auto; } figure svg { max-width: none; zoom: 1; } }
@media print { :root { color-scheme: light; font-size: 10pt; } body { max-width: none; padding: 0; }
  figure, .sentences, tr, li, p, details { break-inside: avoid; } h2, h3, .finding, .method, caption,
  thead, tr:nth-child(-n+3) { break-after: avoid; } tr:nth-last-child(-n+3) { break-before: avoid; }
  details::details-content { content-visibility: visible; } .scroll { overflow: visible; } figure svg { zoom: 1; }
  pre { white-space: pre-wrap; } .blocks:has(.wide) { display: block; } th.number { white-space: normal; } }
"""


def page(store: Store, sections: Sequence[Section], *, seed: int) -> str:
    """Return the page of a report."""
    plain = str(store.path).rstrip("/").rpartition("/")[2]
    name = escape(plain)
    model = escape(str(store.metadata.model["name"]))
    items = "".join(
        f'<li><a href="#{each.name}">{escape(each.title)}</a>: '
        f"<span{'' if each.problem is None else ' class=soft'}>{_text(each.problem or each.finding)}</span></li>"
        for each in sections
    )
    opening = escape(f"import embstore as es\nimport numpy as np\n\nstore = es.open({plain!r})")
    body = "".join(map(_section, sections))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}: report</title><style>{STYLE}</style></head>\n<body><header><h1><bdi>{name}</bdi></h1>"
        f'<p class="soft">Hidden states of <bdi>{model}</bdi>. Seed {seed}. Every section names its method and its '
        f"limits, and has the Python that computes the same numbers after:</p><pre>{opening}</pre></header>\n"
        f"<nav><ol>{items}</ol></nav>\n<main>{body}</main></body></html>\n"
    )


def _section(section: Section) -> str:
    head = f'<section id="{section.name}"><h2>{escape(section.title)}</h2>'
    if section.problem is not None:
        return f'{head}<p class="problem">Not computed: {_text(section.problem)}.</p></section>\n'
    caveats = "".join(f"<li>{_text(each)}</li>" for each in section.caveats)
    return (
        f'{head}<p class="finding">{_text(section.finding)}</p><p class="method">{_text(section.method)}</p>'
        f'<div class="blocks">{"".join(map(_block, section.blocks))}</div>'
        + (f'<h3>Limits</h3><ul class="soft">{caveats}</ul>' if caveats else "")
        + f"<details><summary>The same in Python</summary><pre>{escape(section.call)}</pre></details></section>\n"
    )


def _block(block: Table | Picture | Sentences) -> str:
    if isinstance(block, Picture):
        return f'<figure class="wide">{block.svg}<figcaption>{_text(block.caption)}</figcaption></figure>'
    if isinstance(block, Sentences):
        lines = "".join(
            f'<p dir="auto">{escape(left)}<mark><bdi>{escape(word)}</bdi></mark>{escape(right)}</p>'
            for left, word, right in block.parts
        )
        return f'<div class="sentences wide"><h3>{_text(block.heading)}</h3>{lines}</div>'
    return _table(block.frame, block.caption)


def _table(frame: pl.DataFrame, caption: str) -> str:
    kinds = [' class="number"' if kind.is_numeric() else "" for kind in frame.dtypes]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(frame.columns, kinds, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{kind}>{_cell(each)}</td>" for each, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in frame.iter_rows()
    )
    title = f"<caption>{_text(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{round(value, 3) + 0:.3f}"
    return f"{value:,}" if isinstance(value, int) else f"<bdi>{escape(str(value))}</bdi>"


def _text(text: str) -> str:
    """Escape a text that may hold words of the corpus, each character as it is."""
    inner = CODE.sub(r"<code>\1</code>", escape(text))
    return f"<bdi>{inner}</bdi>"
