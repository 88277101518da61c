"""A way to a cluster is opened, though the broker that answered first goes away in between."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from mirror.clusters import connected
from mirror.config import ClusterSettings
from mirror.errors import ConnectionFailedError, TwinsiteError, UnsupportedVersionError
from mirror.kafka.cluster import Cluster
from mirror.kafka.dial import Address, ConnectionOptions

SETTINGS = ClusterSettings(bootstrap_servers=("127.0.0.1:1",))


class Connection:
    """One to a broker that speaks every version."""

    def version(self, *_: object, **__: object) -> int:
        return 13


class Answers:
    """A cluster that has answered once, and then fails some times when a connection is asked for."""

    def __init__(self, *failures: TwinsiteError) -> None:
        self._failures = list(failures)

    async def start(self, *_: object, **__: object) -> None:
        """The first answer."""

    async def any_connection(self, _: Cluster) -> Connection:
        if self._failures:
            raise self._failures.pop(0)
        return Connection()


def answering(monkeypatch: pytest.MonkeyPatch, failures: Sequence[TwinsiteError]) -> None:
    answers = Answers(*failures)
    monkeypatch.setattr(Cluster, "start", answers.start)
    monkeypatch.setattr(Cluster, "any_connection", lambda cluster: answers.any_connection(cluster))


async def test_a_broker_that_goes_away_after_its_first_answer_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    What it speaks is asked of whichever broker answers next.
    """
    answering(monkeypatch, [ConnectionFailedError("the broker has gone")] * 2)

    async with connected("target", SETTINGS) as cluster:
        assert cluster.name == "target"


async def test_a_broker_that_is_too_old_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It will not grow younger.
    """
    answering(monkeypatch, [UnsupportedVersionError("no Fetch v13")])

    with pytest.raises(UnsupportedVersionError):
        async with connected("target", SETTINGS):
            raise AssertionError("not reached")


async def test_whether_a_cluster_is_up_says_its_last_answer() -> None:
    """
    Nothing is known before it was asked.
    """
    cluster = Cluster("target", [Address("127.0.0.1", 1)], ConnectionOptions())
    before = cluster.up

    with pytest.raises(ConnectionFailedError):
        await cluster.any_connection()
    refused = cluster.up
    cluster.last_answer_at = time.monotonic()

    assert (before, refused, cluster.up) == (None, False, True)
