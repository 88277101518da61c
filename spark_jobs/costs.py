"""What a comparison has cost: how much was read at each site, and how large the answers are.

All questions count, including those that look closer and those of attempts that were started again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlparse

from pyarrow import compute, parquet
from pyspark.sql import DataFrame

from spark_jobs.questions import Question, What
from spark_jobs.result import Cost
from spark_jobs.sites import Site


@dataclass(slots=True)
class Counted:
    """A site whose answers are counted."""

    site: Site
    cost: Cost = field(default_factory=Cost)

    def ask(self, question: Question) -> DataFrame:
        """The answer of the site.

        Raises:
            UnansweredError: The site has not answered yet.
        """
        answer = self.site.ask(question)
        self.cost += cost_of(question, answer)
        return answer


def cost_of(question: Question, answer: DataFrame) -> Cost:
    """What an answer has cost. For a sample, what was read is estimated from the records in it."""
    files = [Path(unquote(urlparse(file).path)) for file in answer.inputFiles()]
    column = "read_bytes" if question.what is What.BUCKETS else "bytes"
    read = sum(compute.sum(parquet.read_table(file, columns=[column])[column]).as_py() or 0 for file in files)
    one_in = question.one_in if question.what is What.CONTENTS else 1
    return Cost(read * one_in, sum(file.stat().st_size for file in files))
