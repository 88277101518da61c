"""What is said at the end of a run of faults that could not be tried."""

from __future__ import annotations

import pytest

from tests.conftest import not_tried


def skipped(nodeid: str, why: str) -> pytest.TestReport:
    """What pytest reports of a test that it has left out."""
    return pytest.TestReport(
        nodeid=nodeid,
        location=("", 0, ""),
        keywords={},
        outcome="skipped",
        longrepr=("tests/faults/test_wan.py", 38, f"Skipped: {why}"),
        when="setup",
    )


def test_faults_are_told_by_why_they_were_not_tried() -> None:
    """
    Each by its sentence, below the reason that they have in common; what is no fault is left out.
    """
    reports = [
        skipped("tests/faults/test_wan.py::test_a_link_is_cut[both ways]", "only root may"),
        skipped("tests/faults/test_clocks.py::test_clocks_are_apart", "there is no faketime"),
        skipped("tests/faults/test_wan.py::test_a_lossy_link", "only root may"),
        skipped("tests/unit/test_page.py::test_a_page", "there is no browser"),
    ]

    assert not_tried(reports) == [
        "2 of the faults not tried: only root may",
        "  a link is cut[both ways]",
        "  a lossy link",
        "1 of the faults not tried: there is no faketime",
        "  clocks are apart",
    ]


def test_of_a_run_that_tried_all_nothing_is_said() -> None:
    """
    Nor of tests elsewhere.
    """
    assert not_tried([skipped("tests/unit/test_page.py::test_a_page", "there is no browser")]) == []
