"""``twinsite pause``, ``resume`` and ``accept-loss``: what an operator tells a running mirror."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from mirror.api.schema import status_from_json
from mirror.cli.client import MirrorClient, ProblemAnswerError, url_option
from mirror.cli.output import clean, duration, number, size
from mirror.errors import StateConflictError, UsageError
from mirror.model import OffsetMode, PartitionStatus, State

MARKER_SECONDS = 0.0001
MARKER_BYTES = 78
"""What one control marker costs a broker; the same figures are in docs/settings.md."""

topic_argument = click.argument("topic")
partition_option = click.option(
    "--partition",
    type=click.IntRange(0, 2**31 - 1),
    default=None,
    help="One partition; by default all of the topic.",
)


@click.command()
@topic_argument
@partition_option
@url_option
def pause(topic: str, partition: int | None, url: str) -> None:
    """Stop copying TOPIC until it is resumed, or until the mirror is restarted.

    A pause ends with the process, and other mirrors of the flow do not know of it. For longer, use
    topics.exclude. Retention at the source does not wait.

    \b
    twinsite pause orders --partition 3
    """
    _act(MirrorClient(url), "pause", topic, partition)


@click.command()
@topic_argument
@partition_option
@url_option
def resume(topic: str, partition: int | None, url: str) -> None:
    """Resume TOPIC, or check it again at once. Never accepts a loss.

    \b
    twinsite resume orders
    """
    _act(MirrorClient(url), "resume", topic, partition)


@click.command("accept-loss")
@topic_argument
@partition_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@url_option
def accept_loss(topic: str, partition: int | None, yes: bool, url: str) -> None:
    """Give up what the source has removed of TOPIC, and go on after it.

    What is given up is never copied. It is shown before anything is done, and nothing else is given up.

    \b
    twinsite accept-loss orders --partition 3
    """
    client = MirrorClient(url)
    lost = _lost(client, topic, partition)
    for one in lost:
        click.echo(f"{clean(one.topic)}-{one.partition}: {clean(one.detail)}{_price(one)}", err=True)
    if not yes and not _agreed(f"Give this up in {number(len(lost))} partitions?"):
        raise UsageError("nothing was given up", hint="answer y, or use --yes where nobody can answer")
    _give_up(client, lost)


def _agreed(question: str) -> bool:
    """Ask the operator. If nobody is there to answer that is a no; Ctrl-C ends the command."""
    try:
        return click.confirm(question, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            return False
        raise


def _give_up(client: MirrorClient, lost: Sequence[PartitionStatus]) -> None:
    """Give up what was shown, partition by partition and by its offsets: later losses are not included.

    Raises:
        ProblemAnswerError: The mirror refused some of them; the others are given up.
    """
    refusals = []
    for one in lost:
        shown = {"lost_from": one.lost_from, "lost_to": one.lost_to}
        try:
            _act(client, "accept-loss", one.topic, one.partition, **shown)
        except ProblemAnswerError as error:
            click.echo(f"{clean(one.topic)}-{one.partition}: refused: {clean(error)}", err=True)
            refusals.append(error)
    if refusals:
        hints = dict.fromkeys(error.hint for error in refusals if error.hint)
        detail = f"{len(refusals)} of {len(lost)} partitions refused"
        raise ProblemAnswerError(refusals[0].status, {"detail": detail, "hint": "; ".join(hints)})


def _price(one: PartitionStatus) -> str:
    """What it costs to keep the same offsets: a control marker for each one that is lost."""
    if one.offset_mode is not OffsetMode.SAME or one.lost_from is None or one.lost_to is None:
        return ""
    markers = one.lost_to - one.lost_from
    seconds, room = markers * MARKER_SECONDS, markers * MARKER_BYTES
    return f"; control markers in their place take about {duration(seconds)}, and {size(room)} at the target"


def _lost(client: MirrorClient, topic: str, partition: int | None) -> list[PartitionStatus]:
    """The partitions that have lost something: at least one.

    Raises:
        StateConflictError: Nothing is lost. The mirror is not told: by then something might be, and nobody
            would have seen it.
        UnknownPartitionError: The flow has no such partition.
        NothingKnownError: The mirror still waits to begin.
    """
    from mirror.api.control import find

    found = find(status_from_json(client.get("status")), topic, partition)
    lost = [one for one in found if one.state is State.DATA_LOSS]
    if not lost:
        words = f"no partition of {topic} is in DATA_LOSS"
        if partition is not None:
            words = f"{topic}-{partition}: has lost nothing, its state is {found[0].state}"
        raise StateConflictError(words)
    return lost


def _act(client: MirrorClient, action: str, topic: str, partition: int | None, **fields: int | None) -> None:
    if topic in {"", ".", ".."}:
        raise UsageError(f"{topic!r} is not a topic name")
    path = ("topics", topic) if partition is None else ("partitions", topic, str(partition))
    try:
        answer = client.post(*path, action, **fields)
    except ProblemAnswerError as error:
        for one in error.document.get("partitions", ()):
            click.echo(_line(one), err=True)
        raise
    for one in answer["partitions"]:
        click.echo(_line(one))


def _line(one: dict[str, Any]) -> str:
    words = f"{one['topic']}-{one['partition']}: {one['outcome']}"
    return clean(f"{words}: {one['detail']}" if "detail" in one else words)
