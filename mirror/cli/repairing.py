"""Run repairs from the command line, record what they write, and show the outcome."""

from __future__ import annotations

import asyncio
import errno
import getpass
import json
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import click
from rich.table import Table

from mirror import logs, service
from mirror.cli.output import clean, console, number, plain, print_json
from mirror.config import Settings, load
from mirror.errors import ExitCode, TwinsiteError, UsageError
from mirror.model import PartitionStatus, TopicPartition
from mirror.repairing.model import Begun, Note, Repaired, Status, Step, Wanted
from mirror.repairing.run import repair
from spark_jobs.findings import Kind
from spark_jobs.plan import PLAN, PartitionPlan, Plan, plan_of_document
from spark_jobs.result import key_text, time_text

AUDIT = "repairs.jsonl"
BEGINS = "appends"
ENDS = frozenset({"appended", "refused", "not_appended", "not_seen"})
"""The events recorded before and after a batch is appended."""
SHOWN = 20
LOG_CHOICES = (
    "copy the topic again (docs/states.md): next to this copy under a prefix, and move the consumers; or in "
    "its place, from what the source still has",
    "leave it as it is (--accept): consumers see it; the flow's state and repairs.jsonl record it, and it is "
    "no longer compared",
)
"""What can be done about an append-only log that differs in its middle."""
SHIFT_CHOICES = ("reconcile again: what follows those offsets is in its place then",)
"""What can be done about a log in which others' records stay: they were all that differed, or not."""
KEY_CHOICES = (
    "put right what is named (--apply), and reconcile again: the next ones are named then",
    "copy the topic again (docs/states.md): less work where most of its keys differ",
)
"""What can be done about keys that differ and were only counted."""


def run(config: Path, path: Path, wanted: Wanted, output: str) -> int:
    """Carry out a plan, or find out what that would do; returns the exit code.

    Raises:
        UsageError: There is no plan, or not one for these settings.
        NotNotedError: The record of repairs cannot be read, or not be written for what is to be copied.
        TwinsiteError: As :func:`mirror.repairing.run.repair`.
    """
    settings = load(config)
    logs.set_up(level="warning", form=settings.log.format)
    file = path / PLAN if path.is_dir() else path
    plan = _read(file)
    audit = _Audit(file.with_name(AUDIT), plan.run)
    done = asyncio.run(repair(settings, plan, wanted, audit.note, audit.begun()))
    late = _to_copy(plan, done)
    copied = _copy(settings, late, audit.note) if wanted.apply and late else {}
    result = _Result(plan, done, copied, applied=wanted.apply)
    if output == "json":
        print_json(result.document())
    else:
        result.show()
    return ExitCode.DONE if result.is_complete else ExitCode.NOT_THERE


def _read(path: Path) -> Plan:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(
            f"there is no {path}",
            hint="complete a run of `twinsite reconcile` that reads brokers, not files: it leaves one",
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="run `twinsite reconcile` again") from error
    return plan_of_document(document, str(path))


def _to_copy(plan: Plan, repaired: Sequence[Repaired]) -> list[PartitionPlan]:
    """The partitions of which something is copied now: not those of a topic of which one is refused.

    Nothing may be written to a refused partition, and what is copied is whole topics.
    """
    refused = {one.plan.name.topic for one in repaired if one.why_not}
    return [one for one in plan.partitions if one.pending.offsets and one.name.topic not in refused]


def _copy(
    settings: Settings, late: Sequence[PartitionPlan], note: Note
) -> Mapping[TopicPartition, PartitionStatus]:
    """Copy what was not copied yet, as `twinsite mirror --once` does.

    Returns:
        How far each partition has come; empty if the copy failed, which is shown and recorded.
    """
    for one in late:
        note({"event": "copies", **_at_target(one), "source_offsets": list(one.pending)})
    names = tuple(sorted({re.escape(one.name.topic) for one in late}))
    topics = settings.topics.model_copy(update={"include": names, "exclude": ()})
    no_port = settings.api.model_copy(update={"port": -1})
    some = settings.model_copy(update={"topics": topics, "api": no_port})
    try:
        status = asyncio.run(service.run(some, stop=asyncio.Event(), once=True))
    except TwinsiteError as error:
        click.echo(f"the missing offsets could not be copied: {clean(error)}", err=True)
        for one in late:
            note({"event": "not_copied", **_at_target(one), "why": str(error)})
        return {}
    copied = {TopicPartition(one.topic, one.partition): one for one in status.partitions}
    for one in late:
        end = copied.get(one.name)
        reached = {"next_source_offset": end and end.next_offset, "state": end and end.state.value}
        note({"event": "copied", **_at_target(one), **reached})
    return copied


def _at_target(one: PartitionPlan) -> dict[str, Any]:
    """A partition as lines of the audit name it."""
    topic, partition = one.target_name
    return {"topic": topic, "partition": partition}


class NotNotedError(TwinsiteError):
    """The record of repairs cannot be read or written. Nothing is done before its line is written."""

    hint = "make the folder of the plan readable and writable, or copy it to a place where it is both"


class _Audit:
    """A line for everything that is written, before and after; on disk when :meth:`note` returns."""

    def __init__(self, path: Path, run: str) -> None:
        self._path, self._run = path, run
        self._in_folder = False
        """Whether the folder is known to list the file on disk; else a power cut takes a new file."""

    def note(self, fields: Mapping[str, object]) -> None:
        """Add a line.

        Raises:
            NotNotedError: The file cannot be written to.
        """
        line = {"at": time_text(round(time.time() * 1000)), "by": _who(), "run": self._run, **fields}
        try:
            with self._path.open("a+b") as file:
                text = json.dumps(line, ensure_ascii=False) + "\n"
                file.write((("\n" if _is_cut_off(file) else "") + text).encode())
                file.flush()
                os.fsync(file.fileno())
            if not self._in_folder:
                _sync_folder(self._path.parent)
                self._in_folder = True
        except OSError as error:
            raise NotNotedError(f"{self._path} cannot be written: {error}") from error

    def begun(self) -> dict[TopicPartition, Begun]:
        """By target partition the batch whose end is not recorded, because the repair was killed."""
        open_: dict[TopicPartition, Begun] = {}
        for line in self._lines():
            tp = TopicPartition(line["topic"], line["partition"])
            if line["event"] == BEGINS:
                open_[tp] = Begun(line["target_offset"], line["producer_epoch"], len(line["records"]))
            elif line["event"] in ENDS:
                open_.pop(tp, None)
        return open_

    def _lines(self) -> list[dict[str, Any]]:
        """The lines of the plan's run. One that was cut off is left out: nothing was done after it.

        Raises:
            NotNotedError: The file cannot be read.
        """
        try:
            lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        except OSError as error:
            raise NotNotedError(f"{self._path} cannot be read: {error}") from error
        found = []
        for line in lines:
            with suppress(ValueError):
                found.append(json.loads(line))
        return [line for line in found if line["run"] == self._run]


def _sync_folder(folder: Path) -> None:
    """Have the names of a folder's files on disk, where its file system can be asked for that."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def _is_cut_off(file: BinaryIO) -> bool:
    """Whether the last writer was killed in the middle of a line."""
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def _who() -> str:
    """The user and machine that run this; the user's number if the system has no name for it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


class _Result:
    """The outcome of a plan."""

    def __init__(
        self,
        plan: Plan,
        repaired: Sequence[Repaired],
        copied: Mapping[TopicPartition, PartitionStatus],
        *,
        applied: bool,
    ) -> None:
        self._plan, self._repaired, self._copied, self._applied = plan, repaired, copied, applied
        done = {one.plan.name for one in repaired if one.accepted and not one.why_not}
        beyond = [one for one in plan.partitions if one.beyond_repair or one.unnamed]
        self._left_in_place = {one.plan.name for one in repaired if one.foreign and not one.why_not}
        """The partitions in which others' records stay: what they have shifted is in its place after that."""
        self._to_copy = {one.name for one in _to_copy(plan, repaired)}
        self._beyond = [one for one in beyond if one.name not in done]
        self._late = [one for one in plan.partitions if one.pending.offsets]

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be done; without ``--apply``, whether nothing would be left."""
        settled = all(self._is_settled(step) for one in self._repaired for step in one.steps)
        arrived = not self._applied or all(self._has_arrived(one) for one in self._late)
        refused = any(one.why_not for one in self._repaired)
        return settled and arrived and not refused and not self._beyond

    def _is_settled(self, step: Step) -> bool:
        return step.status.is_settled or (step.status is Status.PLANNED and not self._applied)

    def _has_arrived(self, one: PartitionPlan) -> bool:
        status = self._copied.get(one.name)
        return status is not None and (status.next_offset or 0) >= one.pending.end

    # -- for programs ----------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        return {
            "run": self._plan.run,
            "flow": self._plan.flow,
            "applied": self._applied,
            "complete": self.is_complete,
            "partitions": [_repaired(one) for one in self._repaired],
            "beyond_repair": [
                {
                    **_names(one),
                    "differences": {kind.value: count for kind, count in _kinds(one).items()},
                    "unnamed": one.unnamed,
                    "choices": list(self._choices(one)),
                }
                for one in self._beyond
            ],
            "not_copied": [
                {**_names(one), "source_offsets": list(one.pending), "state": self._state(one)}
                for one in self._late
            ],
        }

    def _state(self, one: PartitionPlan) -> str | None:
        status = self._copied.get(one.name)
        return None if status is None else status.state.value

    def _choices(self, one: PartitionPlan) -> tuple[str, ...]:
        if one.is_compacted:
            return KEY_CHOICES
        return SHIFT_CHOICES if one.name in self._left_in_place else LOG_CHOICES

    # -- for people ------------------------------------------------------------------------------

    def show(self) -> None:
        screen = console()
        steps = [(one, step) for one in self._repaired for step in one.steps]
        if steps:
            screen.print(_steps(steps[:SHOWN]))
        if len(steps) > SHOWN:
            screen.print(f"and {number(len(steps) - SHOWN)} more")
        for one in self._repaired:
            for words in _said(one, applied=self._applied):
                screen.print(plain(f"{one.plan.target_name}: {words}"))
        for late in self._late:
            what = f"{number(late.pending.offsets)} source offsets not at the target yet"
            screen.print(plain(f"{late.name}: {what}{self._then(late)}"))
        for beyond in self._beyond:
            if self._choices(beyond) is not SHIFT_CHOICES:
                screen.print(plain(f"{beyond.name}: {_left(beyond)}"))
        for choices in dict.fromkeys(self._choices(one) for one in self._beyond):
            screen.print("the choices:")
            for choice in choices:
                screen.print(f"  - {choice}")
        counts = Counter(step.status for _, step in steps)
        said = ", ".join(
            f"{number(count)} {status.value.replace('_', ' ')}" for status, count in counts.items()
        )
        screen.print(said or "no key needs a repair")
        if not self._applied:
            screen.print("nothing was written: use --apply to write")

    def _then(self, late: PartitionPlan) -> str:
        """What becomes of the source offsets that are not at the target yet."""
        if late.name not in self._to_copy:
            return ": nothing is copied while a partition of the topic is refused"
        if not self._applied:
            return " would be copied"
        return f": {self._state(late) or 'not copied'}"


def _steps(steps: Sequence[tuple[Repaired, Step]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("target", "kind", "key"):
        table.add_column(heading)
    table.add_column("append", justify="left")
    table.add_column("", justify="left")
    for one, step in steps:
        mend = step.mend
        what = "a tombstone" if mend.source_offset is None else f"source offset {mend.source_offset}"
        stands = "" if step.at is None else f" at {step.at}"
        table.add_row(
            plain(one.plan.target_name),
            mend.kind.value,
            plain(clean(key_text(mend.key))),
            what,
            f"{step.status.value.replace('_', ' ')}{stands}" + (f": {step.why}" if step.why else ""),
        )
    return table


def _said(one: Repaired, *, applied: bool) -> list[str]:
    said = []
    if one.foreign and not one.why_not:
        offsets = sum(end - start for start, end in one.foreign)
        said.append(f"{number(offsets)} offsets that others have written stay where they are")
    if one.accepted:
        offsets = sum(end - start for start, end in one.accepted)
        said.append(f"{number(offsets)} offsets that differ are accepted as they are")
    if one.becomes_mapped and not one.why_not:
        said.append("no longer keeps the source's offsets" if applied else "would become mapped")
    if one.why_not:
        said.append(f"nothing {'more was' if applied else 'can be'} written: {one.why_not}")
    return said


def _left(one: PartitionPlan) -> str:
    """What cannot be put right."""
    counted = f"{number(one.unnamed)} {'keys' if one.is_compacted else 'places'} that were only counted"
    if one.is_compacted:
        return f"not put right: {counted}"
    found = [f"{number(count)} {kind.value}" for kind, count in _kinds(one).items()]
    return f"cannot be put right in place: {', '.join([*found, counted] if one.unnamed else found)}"


def _kinds(one: PartitionPlan) -> Counter[Kind]:
    return Counter(beyond.kind for beyond in one.beyond_repair)


def _names(one: PartitionPlan) -> dict[str, Any]:
    return {"topic": one.name.topic, "partition": one.name.partition, "target_topic": one.target_topic}


def _repaired(one: Repaired) -> dict[str, Any]:
    return {
        **_names(one.plan),
        "why_not": one.why_not or None,
        "foreign_target_offsets": [list(some) for some in one.foreign],
        "accepted_target_offsets": [list(some) for some in one.accepted],
        "becomes_mapped": one.becomes_mapped,
        "steps": [
            {
                "kind": step.mend.kind.value,
                "key": key_text(step.mend.key),
                "source_offset": step.mend.source_offset,
                "target_offset": step.mend.target_offset,
                "status": step.status.value,
                "at": step.at,
                "why": step.why or None,
            }
            for step in one.steps
        ],
    }
