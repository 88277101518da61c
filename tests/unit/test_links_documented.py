"""Links between the pages of the documentation lead to a file that is there, and to a heading in it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    found = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-") for heading in found}


def leads_nowhere(page: Path, link: str) -> bool:
    """Whether there is no such file, or no such heading in it."""
    name, _, heading = link.partition("#")
    there = page if not name else (page.parent / name).resolve()
    if not there.exists():
        return True
    return bool(heading) and heading not in headings(there)


def test_every_link_arrives() -> None:
    """
    Those to other sites aside.
    """
    found = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)\s]+)\)", prose(page))]
    ours = [(page, link) for page, link in found if "://" not in link]

    assert (ROOT / "README.md", "docs/permissions.md#target") in ours
    assert [(str(page.relative_to(ROOT)), link) for page, link in ours if leads_nowhere(page, link)] == []
