"""Every state and reason is explained, and the commands of the page are the right ones."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import mirror
from mirror.api import problems
from mirror.flow.hints import HINTS, hint, severity
from mirror.flow.partition import PartitionCopy
from mirror.flow.states import APPEND_REFUSALS, FETCH_REFUSALS, PATIENCE, Refusal
from mirror.model import Reason, State, TopicPartition

SOURCES = Path(mirror.__file__).parent
ORDERS_0 = TopicPartition("orders", 0)
PAGE = (Path(__file__).parents[2] / "docs" / "states.md").read_text()


def entries(heading: str) -> dict[str, str]:
    """The text below each ``###`` of a section."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    parts = re.split(r"^### `(\w+)`$", section, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_state_has_an_entry() -> None:
    """
    In capitals, as in status and metrics; none that does not exist.
    """
    assert entries("States").keys() == {state.value for state in State}


def test_every_reason_has_an_entry() -> None:
    """
    None is missing, none is left over.
    """
    assert entries("Reasons").keys() == {reason.value for reason in Reason}


def test_the_page_says_which_states_are_in_order() -> None:
    """
    Those that are logged as information, whatever their reason.
    """
    quiet = {state.value for state in State if severity(state, Reason.ANOTHER_MIRROR) == logging.INFO}

    [named] = re.findall(r"normal or requested \((.*?), `LAGGING`", PAGE)

    assert set(re.findall(r"`(\w+)`", named)) == quiet


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_given_somewhere(reason: Reason) -> None:
    """
    A reason that no code gives is a promise nobody keeps: alerts would wait for it for ever.
    """
    talk_of_it = {"model.py", "hints.py"}
    code = "".join(path.read_text() for path in SOURCES.rglob("*.py") if path.name not in talk_of_it)

    given = re.findall(rf"(?<!is )(?<!is not )\bReason\.{reason.name}\b", code)

    assert given


def test_a_reason_is_documented_with_the_states_that_code_puts_it_into() -> None:
    """
    Where both are named side by side, the page names both.
    """
    reasons = entries("Reasons")
    code = "".join(path.read_text() for path in SOURCES.rglob("*.py"))
    pairs = re.findall(r"\bState\.([A-Z_]+),\s*Reason\.([A-Z_]+)\b", code)

    missing = [(s, r) for s, r in pairs if f"`{s}`" not in reasons[Reason[r].value].split("- **Seen:**")[0]]

    assert len(pairs) > 10
    assert missing == []


@pytest.mark.parametrize("reason", Reason)
def test_an_entry_says_what_was_seen_what_happens_and_what_to_do(reason: Reason) -> None:
    """
    Four lines, in this order, and a state that exists.
    """
    entry = entries("Reasons")[reason.value]

    assert re.findall(r"^- \*\*([^*]+):\*\*", entry, re.M) == ["State", "Seen", "Mirror", "You"]
    named = re.findall(r"`([A-Z_]+)`", entry.split("- **Seen:**")[0])
    assert named
    assert set(named) <= {state.value for state in State}


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_hint_of_one_sentence(reason: Reason) -> None:
    """
    Short enough for a line in status, and a sentence.
    """
    words = HINTS[reason]

    assert words[0].isupper()
    assert words.endswith(".")
    assert "\n" not in words
    assert 20 < len(words) < 200


def test_an_active_partition_needs_no_hint() -> None:
    """
    Nothing is wrong, so nothing is said.
    """
    assert hint(State.ACTIVE, None) == ""


def test_a_hint_knows_the_state_where_that_matters() -> None:
    """
    A foreign write during preparation is tried again, one in a copied partition is not.
    """
    assert "by itself" in hint(State.BLOCKED, Reason.FOREIGN_WRITE)
    assert "copy the topic again" in hint(State.DIVERGED, Reason.FOREIGN_WRITE)


def test_what_may_not_be_seen_may_be_gone() -> None:
    """
    A topic that was deleted with its ACLs is said to be hidden, for ever; and there is nothing to be granted.
    """
    assert "exclude it if it was deleted" in hint(State.BLOCKED, Reason.SOURCE_NOT_AUTHORIZED)


@pytest.mark.parametrize("reason", [Reason.FOREIGN_WRITE, Reason.OFFSETS_DIFFER])
def test_what_others_have_written_may_stay_before_a_topic_is_copied_again(reason: Reason) -> None:
    """
    The gentler way comes first, step by step, as the page has it.
    """
    words = hint(State.DIVERGED, reason)

    steps = ("stop", "reconcile", "repair", "resume", "copy the topic again")
    places = [words.lower().index(step) for step in steps]

    assert places == sorted(places)


def test_whoever_has_emptied_a_topic_has_not_made_room_for_the_same_offsets() -> None:
    """
    Its log ends where it did: the topic itself has to go. Unless it may be another flow's, which could not be
    asked.
    """
    words = hint(State.BLOCKED, Reason.TARGET_NOT_EMPTY)

    assert "unless the log says other_flow_not_known" in words
    assert words.endswith("delete the target topic, if nobody needs any of its partitions.")


def test_what_a_broker_refuses_is_documented_with_the_state_it_leads_to() -> None:
    """
    The table of refusals and the page tell the same story, also of those that are shown after some tries.
    """
    reasons = entries("Reasons")
    refusals = [*APPEND_REFUSALS.values(), *FETCH_REFUSALS.values()]

    found = [after_all_tries(refusal) for refusal in refusals]
    missing = [(s, r) for s, r in found if f"`{s}`" not in reasons[r.value].split("- **Seen:**")[0]]

    assert len(found) > 20
    assert missing == []


@pytest.mark.parametrize("refusal", FETCH_REFUSALS.values())
def test_nobody_is_told_to_accept_a_loss_before_there_is_one(refusal: Refusal) -> None:
    """
    The command is refused in every state but DATA_LOSS.
    """
    state, reason = after_all_tries(refusal)

    assert "accept" not in hint(state, reason)


def after_all_tries(refusal: Refusal) -> tuple[State, Reason]:
    """How a partition is shown of which a broker says this again and again."""
    partition = PartitionCopy(ORDERS_0, ORDERS_0, bytes(16), in_flight_max=5)
    for _ in range(PATIENCE):
        partition.refused(refusal, "the broker says no", now=0.0)
    assert partition.reason is not None
    return partition.state, partition.reason


def test_every_code_of_a_problem_is_in_the_table() -> None:
    """
    Scripts act on these codes.
    """
    table = PAGE.split("| Code | Status | Meaning |")[1].split("\n\n")[0]
    written = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines()[2:])))

    source = "".join(
        path.read_text() for path in (Path(problems.__file__).parent).glob("*.py") if path.name != "page.py"
    )
    raised = set(re.findall(r'ProblemError\(\s*\d{3},\s*"(\w+)"', source))
    mapped = {code for _, _, code in problems._OF_ERRORS} | set(problems._OF_STATUS.values())

    assert written - {"partitions", "detail"} >= (raised | mapped) - {"forbidden"}
    assert written - raised - mapped == set()
