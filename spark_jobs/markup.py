"""Pieces of a page: its frame and style, tables, and words and numbers for people.

Arguments called words are escaped here; those called markup have been already. A page loads nothing, and its
policy lets no script run. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape

NO_BREAK = "\N{NO-BREAK SPACE}"

STYLE = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --line: #d9dde3; --text: #16191d;
  --dim: #5b6470; --good: #14713a; --good-back: #e2f4e8; --warn: #8a5300; --warn-back: #fdf0d5;
  --bad: #a8161b; --bad-back: #fde5e4; --log: #c3cedb; --gone: #e8ebf0; --pending: #bfe0d8;
  --beyond: #f6cfd6; --accepted: #d9cdee; --unnamed: #e58a80;
  --missing: #c92a1f; --extra: #8e3fb0; --changed: #d35b00; --duplicated: #937200; --reordered: #1f6fb2;
  --offset_shifted: #5f6b76; --stale: #0d7f6b; --resurrected: #c4177c; --not_yet_deleted: #5b7a00; }
@media (prefers-color-scheme: dark) { :root { --back: #101316; --card: #191d22; --line: #323840;
  --text: #e8eaed; --dim: #9aa4b0; --good: #6fd893; --good-back: #12301d; --warn: #f2bd5c;
  --warn-back: #382a0d; --bad: #ff9088; --bad-back: #431918; --log: #3d4a59; --gone: #23282f;
  --pending: #1f4a42; --beyond: #57252f; --accepted: #41355a; --unnamed: #8c3a33;
  --missing: #ff6f61; --extra: #cf90ec; --changed: #ff9b45; --duplicated: #e6c544; --reordered: #6ab5ee;
  --offset_shifted: #a9b5bf; --stale: #43cdb1; --resurrected: #ff79c0; --not_yet_deleted: #b5d44d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text);
  font: 16px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.25rem; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: .25rem 1rem; margin-bottom: 1rem; }
h1 { font-size: 1.35rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 0 0 .35rem; overflow-wrap: anywhere; }
p { margin: .4rem 0; } a { color: inherit; }
.dim { color: var(--dim); font-size: .9rem; font-weight: 400; }
.banner { border: 1px solid; border-left-width: .5rem; border-radius: .5rem; padding: .8rem 1rem;
  font-size: 1.2rem; font-weight: 600; }
.banner p { margin: .15rem 0 0; font-size: .95rem; font-weight: 400; color: var(--text);
  overflow-wrap: anywhere; }
.good { color: var(--good); background: var(--good-back); }
.warn { color: var(--warn); background: var(--warn-back); }
.bad { color: var(--bad); background: var(--bad-back); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem;
  margin-top: .75rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .7rem .9rem; }
.figures b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums; font-weight: 600; }
code { font: .85rem/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  overflow-wrap: anywhere; }
.next { margin-top: .75rem; } .next p { margin: 0 0 .4rem; }
code.command { display: block; background: var(--back); border: 1px solid var(--line);
  border-radius: .35rem; padding: .4rem .6rem; user-select: all; }
.wide { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: .5rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .8rem; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-weight: 600; font-size: .82rem; } tr:last-child td { border-bottom: 0; }
td.words { white-space: normal; overflow-wrap: anywhere; min-width: 12rem; }
th.right, td.right { text-align: right; }
summary { cursor: pointer; padding: .35rem 0; color: var(--dim); font-size: .9rem; }
.topic { margin-bottom: 1rem; }
.topic .wide { margin-top: .6rem; max-height: 21.7rem; } .topic th { position: sticky; top: 0;
  background: var(--card); }
.kinds { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; margin-bottom: .5rem; font-size: .9rem; }
.dot { display: inline-block; width: .75rem; height: .75rem; border-radius: .15rem; margin-right: .4rem;
  vertical-align: -.05rem; }
.strip { display: grid; grid-template-columns: 2.5rem 6.5rem minmax(0, 1fr) 6.5rem 8.5rem; gap: .6rem;
  align-items: center; margin: .2rem 0; font-size: .85rem; font-variant-numeric: tabular-nums; }
.strip svg { width: 100%; height: 1.6rem; display: block; }
.dense .strip { margin: 0; font-size: .78rem; line-height: 1.2; } .dense .strip svg { height: .9rem; }
.strip .right { text-align: right; }
@media (max-width: 48rem) { main { padding: .75rem; } th, td { padding: .35rem .5rem; }
  td.words { min-width: 9rem; }
  .strip { grid-template-columns: 2.2rem minmax(0, 1fr) 5.5rem; } .strip .offset { display: none; } }
@media print { body { background: none; } .topic .wide { max-height: none; } }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def framed(title: str, parts: Iterable[str]) -> str:
    """A page, whole.

    Args:
        title: Words.
        parts: Markup.
    """
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{text(title)}</title><style>{STYLE}{_FILLS}</style></head><body><main>",
            *parts,
            "</main></body></html>\n",
        )
    )


COLORS = (
    "log", "gone", "pending", "beyond", "accepted", "unnamed", "missing", "extra", "changed", "duplicated",
    "reordered", "offset_shifted", "stale", "resurrected", "not_yet_deleted",
)  # fmt: skip
_FILLS = "".join(f".{name} {{ fill: var(--{name}); background: var(--{name}); }}\n" for name in COLORS)


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    words: Collection[int],
    right: Collection[int] = (),
) -> str:
    """A table that scrolls where it does not fit.

    Args:
        headings: Words; none where the rows say what they are.
        rows: Cells of markup.
        words: Columns whose cells may wrap.
        right: Columns of numbers.
    """

    def kind(at: int) -> str:
        return ' class="right"' if at in right else ' class="words"' if at in words else ""

    head = "".join(f"<th{kind(at)}>{text(heading)}</th>" for at, heading in enumerate(headings))
    body = "".join(
        f"<tr>{''.join(f'<td{kind(at)}>{cell}</td>' for at, cell in enumerate(row))}</tr>" for row in rows
    )
    return f'<div class="wide"><table>{f"<tr>{head}</tr>" if head else ""}{body}</table></div>'


def banner(tone: str, heading: str, *paragraphs: str) -> str:
    """What has to be seen first.

    Args:
        tone: ``good``, ``warn`` or ``bad``.
        heading, paragraphs: Words.
    """
    below = "".join(f"<p>{text(words)}</p>" for words in paragraphs if words)
    return f'<div class="banner {tone}">{text(heading)}{below}</div>'


def figure(value: str, words: str) -> str:
    """One of several numbers that are shown large, side by side."""
    return f'<div class="card"><b>{text(value)}</b><span class="dim">{text(words)}</span></div>'


def folded(words: str, markup: str) -> str:
    """Markup that is hidden until it is unfolded."""
    return f"<details><summary>{text(words)}</summary>{markup}</details>"


def dot(color: str) -> str:
    """A spot of a color of :data:`COLORS`."""
    return f'<span class="dot {color}"></span>'


def text(words: str) -> str:
    """Words as markup: escaped."""
    return escape(words, quote=True)


def number(count: int) -> str:
    """``1 234 567``."""
    return f"{count:,}".replace(",", NO_BREAK)


def counted(count: int, one: str, many: str | None = None) -> str:
    """``1 record``, ``2 records``."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def size(count: float) -> str:
    """``1.2 GB``: decimal units, as disks and networks count."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min``, ``5 h 20 min``."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds // 60:.0f} min"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


def numbers(some: Iterable[int]) -> str:
    """``0 to 39, 41``: numbers in order, consecutive ones by their ends."""
    rows: list[list[int]] = []
    for one in sorted(some):
        if rows and rows[-1][1] == one - 1:
            rows[-1][1] = one
        else:
            rows.append([one, one])
    return ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in rows)
