"""A site that cannot be reached from here: questions and answers are carried in a folder.

A comparison runs as far as the answers in the folder go, and leaves the next questions. When they have been
answered at the site, it is run again: it asks the same questions, finds the answers, and gets further.

With every answer goes a list: of its files, and of which question they answer. Without it, an answer that is
incomplete, or left over from an older comparison, would be mistaken for what the site has answered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from mirror.errors import TwinsiteError, UsageError
from spark_jobs.documents import question_of_document, question_to_document
from spark_jobs.questions import Question
from spark_jobs.result import Files
from spark_jobs.sites import ANSWERS, KafkaSite, UnansweredError
from spark_jobs.sites import give as give_at

ASKS = "asks"
FILES = "files"
SUMS = "sums"
"""Folder of the lists that come with answers; an answer without a list does not count."""


@dataclass(frozen=True, slots=True)
class CarriedSite:
    """A site that answers in a folder.

    Attributes:
        name: ``source`` or ``target``.
    """

    spark: SparkSession
    name: str
    folder: Path

    def ask(self, question: Question) -> DataFrame:
        """The answer that is in the folder.

        Raises:
            UnansweredError: There is none yet; the question is in the folder now.
            UsageError: The folder holds another question in its place.
            DamagedAnswerError: Files of the answer are missing or damaged, or there are others among them.
        """
        name = leave(self.folder, self.name, question)
        if not is_answered(self.folder, name):
            raise UnansweredError(f"the {self.name} has not answered {name}")
        path = self.folder / ANSWERS / name
        if names := _not_as_told(self.folder, name):
            raise DamagedAnswerError(
                f"{path} is not as the site left it; missing, damaged or not its own: {', '.join(names)}",
                hint="carry the folder over again, with all its files and no others; if it is damaged at "
                "the site itself, `twinsite reconcile digest` answers again there",
            )
        return self.spark.read.parquet(str(path.absolute()))


class DamagedAnswerError(TwinsiteError):
    """An answer did not arrive as it was given: nothing is concluded about the copy."""


def is_answered(folder: Path, name: str) -> bool:
    """Whether a question in the folder has an answer; one to an older question of its name does not count.

    Raises:
        UsageError: The question is not there, or is not JSON.
    """
    listed = _list_of(folder, name)
    return listed.get("question") == _sum_of_question(folder, name)


def _not_as_told(folder: Path, name: str) -> list[str]:
    """Files of an answer that are missing, damaged, or not its own."""
    found, told = _sums(folder / ANSWERS / name), _list_of(folder, name).get("files", {})
    return sorted(file for file in {*found, *told} if found.get(file) != told.get(file))


def _list_of(folder: Path, name: str) -> Mapping[str, Any]:
    """The list that came with an answer; empty, as if there were no answer, where it cannot be read."""
    try:
        found = json.loads((folder / SUMS / f"{name}.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _sum_of_question(folder: Path, name: str) -> str:
    """A hash of a question. The question holds the salt of its comparison, so no other has the same hash."""
    return sha256(json.dumps(read_json(folder / ASKS / f"{name}.json"), sort_keys=True).encode()).hexdigest()


def _sums(answer: Path) -> dict[str, str]:
    return {part.name: sha256(part.read_bytes()).hexdigest() for part in sorted(answer.glob("*.parquet"))}


def leave(folder: Path, site: str, question: Question) -> str:
    """Leave a question to a site, unless it is there already; returns its name.

    Raises:
        UsageError: The folder holds another question in its place.
    """
    name = f"{site}-{question.name}"
    asked = folder / ASKS / f"{name}.json"
    document = question_to_document(question)
    if not asked.exists():
        write_json(asked, document)
    elif read_json(asked) != json.loads(json.dumps(document)):
        raise UsageError(
            f"{asked} differs from the question that is asked now",
            hint="begin in a new folder: what is compared, or twinsite itself, has changed meanwhile",
        )
    return name


def unanswered(folder: Path, site: str) -> Iterator[tuple[str, Question]]:
    """Questions to a site that have no whole answer yet, in the order of their names: ``keys`` are asked
    before ``keys-behind``.

    Raises:
        UsageError: One of them cannot be read.
    """
    for asked in sorted((folder / ASKS).glob(f"{site}-*.json"), key=lambda asked: asked.stem):
        if not is_answered(folder, asked.stem) or _not_as_told(folder, asked.stem):
            yield asked.stem, question_of_document(read_json(asked), str(asked))


def give(folder: Path, name: str, question: Question, site: KafkaSite) -> None:
    """Answer one question, whole or not at all.

    Raises:
        PySparkException: The cluster could not be read as asked.
        SparkFailedError, TwinsiteError: As :func:`spark_jobs.sites.give`.
    """
    answer = folder / ANSWERS / name
    began = time.monotonic()
    give_at(site, question, answer)
    seconds = round(time.monotonic() - began, 3)
    told = {"question": _sum_of_question(folder, name), "files": _sums(answer), "seconds": seconds}
    write_json(folder / SUMS / f"{name}.json", told)


def answer_seconds(folder: Path, site: str) -> float:
    """How long a site took for all its answers so far, in seconds."""
    lists = (_list_of(folder, asked.stem) for asked in (folder / ASKS).glob(f"{site}-*.json"))
    return float(sum(one.get("seconds", 0) for one in lists))


def note_files(folder: Path, site: str, directories: Sequence[str]) -> None:
    """Note that a site answers from log directories, and not from its brokers."""
    write_json(folder / FILES / f"{site}.json", list(directories))


def files(folder: Path) -> Files:
    """The sites that have answered from log directories, with those.

    Raises:
        UsageError: A note cannot be read.
    """
    notes = {note.stem: read_json(note) for note in sorted((folder / FILES).glob("*.json"))}
    return {site: named for site, named in notes.items() if isinstance(named, list)}


def write_json(path: Path, document: object) -> None:
    """Write a document whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}")
    beside.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    beside.replace(path)


def read_json(path: Path) -> object:
    """Read a document.

    Raises:
        UsageError: It is not there, or is not JSON.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"{path} is not there", hint="begin with `twinsite reconcile scope`") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="carry the folder over again") from error
