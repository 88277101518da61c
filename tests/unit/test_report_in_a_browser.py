"""The page of a run as a browser lays it out, on a wide screen and on a telephone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.findings import Difference, Kind
from spark_jobs.logs import Compared, Finding
from spark_jobs.markup import POLICY
from spark_jobs.report import page
from spark_jobs.result import NotCompared
from tests.unit.test_reconcile_result import FINDINGS, log, result

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
LONG = "a-department." * 19
HOSTILE = b"</code><script>document.title = 'taken'</script><img src=http://elsewhere.test/x>"

MEASURE = """
<script>
const inside = (part, whole) =>
  part.left >= whole.left - 1 && part.right <= whole.right + 1 && part.top >= whole.top - 1 &&
  part.bottom <= whole.bottom + 1 && part.width > 0 && part.height > 0;
const box = (element) => element.getBoundingClientRect();
const pictures = [...document.querySelectorAll("svg")];
document.body.append(Object.assign(document.createElement("pre"), { id: "measured", textContent:
  JSON.stringify({
    title: document.title,
    foreign: document.querySelectorAll("img, script, iframe, link, object").length,
    pictures: pictures.map((svg) => [box(svg).width, svg.querySelectorAll("rect").length]),
    outside: pictures.flatMap((svg) =>
      [...svg.querySelectorAll("rect")].filter((rect) => !inside(box(rect), box(svg)))).length,
    unfilled: [...document.querySelectorAll("rect, .dot")].filter((one) =>
      !/^rgb\\(/.test(getComputedStyle(one)[one.tagName === "rect" ? "fill" : "backgroundColor"])).length,
    wider: document.documentElement.scrollWidth - innerWidth,
  }) }));
</script>
"""
"""What is measured in the page, with its policy taken off: it would let no script run."""


@pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1280, 500])
def test_everything_lies_where_it_belongs_and_nothing_foreign_gets_in(width: int, tmp_path: Path) -> None:
    """
    Long topics, two hundred partitions, differences of every kind at both ends, and keys made of markup.
    """
    every = [
        Finding(difference=Difference(kind=kind, source_offset=at, target_offset=at), key=HOSTILE)
        for at in (5, 89)
        for kind in Kind
    ]
    partitions = [Compared(log=log("many", at), findings=FINDINGS if at % 3 else ()) for at in range(200)]
    unknown = tuple(NotCompared(LONG, at, "nobody has begun to copy it") for at in range(0, 400, 2))
    shown = result(Compared(log=log(LONG), findings=every), *partitions, not_compared=unknown)

    seen = measured(page(shown, "reconcile/r1"), width, tmp_path)

    assert seen["title"] == "east: mismatch"
    assert seen["foreign"] == 1, "the script that measures"
    assert len(seen["pictures"]) == 65
    assert seen["outside"] == 0
    assert seen["unfilled"] == 0
    assert min(wide for wide, _ in seen["pictures"]) > width / 3
    assert seen["wider"] <= 0


def measured(markup: str, width: int, folder: Path) -> dict[str, Any]:
    assert POLICY in markup
    open_page = re.sub(r"<meta http-equiv=[^>]*>", "", markup).replace("</main>", f"</main>{MEASURE}")
    (folder / "page.html").write_text(open_page, encoding="utf-8")
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
            f"--user-data-dir={folder / 'browser'}", f"--window-size={width},900",
            (folder / "page.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )  # fmt: skip
    found = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr
    document: dict[str, Any] = json.loads(unescape(found[1]))
    return document
