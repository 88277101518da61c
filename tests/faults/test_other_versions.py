"""A mirror and a relay of different versions: they use what they have in common, and copies are exact.

None of them can tell which of the two is older, nor does it make a difference: one asks for what the other
does not have. So a relay of now is another one for a mirror whose words are changed on their way to it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mirror.flow.linked import LOOK_AGAIN_SECONDS
from mirror.link import messages
from mirror.link.messages import Messages
from mirror.link.protocol import PROTOCOL, Down, Up
from tests.conftest import TopicFactory
from tests.faults.flows import complete, configured, copied, once, partitions, says, writing
from tests.harness.checker import assert_exact, watermarks
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, events, twinsite
from tests.harness.proxy import proxy
from tests.harness.relay import Relay, through

pytestmark = pytest.mark.timeout(240)

PARTITIONS, RECORDS, VALUE_BYTES = 3, 6_000, 500
LITTLE = 20
"""Records written at a time for a minute or more: it is the time that counts."""
LIMIT_BYTES_PER_SECOND = 25_000_000
NOVELTY: dict[str, object] = {"novelty": {"of": ["a", "later", "version"]}}
STREAM, OTHER_STREAM = f"Upgrade: {PROTOCOL}".encode(), b"Upgrade: twinsite-frames/9"
TO_BROKERS, OTHER_TO_BROKERS = b"Upgrade: twinsite-kafka/1", b"Upgrade: twinsite-kafka/9"
ASKED_AGAIN = 3
"""Times a stream was refused: whoever would copy without one has done so by then."""


class Requests:
    """Asks a relay for another version than the mirror does, until the relay is said to have been updated.

    Attributes:
        refused: Requests of which that was made.
    """

    def __init__(self, asked: bytes, other: bytes) -> None:
        self.refused = 0
        self._asked, self._other = asked, other
        self._updated = threading.Event()

    def update(self) -> None:
        """From now on the relay knows the version of the mirror."""
        self._updated.set()

    def __call__(self, _: int, before: int, data: bytes) -> bytes:
        if before or self._asked not in data or self._updated.is_set():
            return data
        self.refused += 1
        return data.replace(self._asked, self._other, 1)


def answer_bytes(came: list[int], data: bytes) -> bytes:
    """Count what a relay answers."""
    came.append(len(data))
    return data


async def written(source: KafkaCluster, topic: TopicFactory, prefix: str) -> str:
    """A topic with something to copy."""
    name = await topic(source, partitions=PARTITIONS, prefix=prefix)
    await asyncio.to_thread(load, source.bootstrap, name, json_rows(RECORDS, VALUE_BYTES), "lz4")
    return name


def link_of(mirror: Twinsite) -> dict[str, Any]:
    """What the status says of the stream; nothing where there is none."""
    found: dict[str, Any] | None = mirror.status().get("link")
    return found or {}


def lines_of(log: str, event: str, **fields: object) -> list[dict[str, Any]]:
    """The lines of a log that carry an event, with these fields."""
    found = [json.loads(line) for line in events(log, event)]
    return [line for line in found if fields.items() <= line.items()]


def keeps_up(mirror: Twinsite) -> bool:
    """Whether all partitions are told to be copied without a lag."""
    return {one["state"] for one in partitions(mirror)} == {"ACTIVE"}


async def test_brokers_are_asked_through_a_relay_of_another_version_until_it_is_updated(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The relay refuses the version of the stream: the mirror says so once, has no link in its status, copies
    what the brokers answer, and asks for a stream once a minute. When it gets one it goes on by that, while
    records are written, and to the last one.
    """
    name = await written(source, topic, "another-version")
    requests = Requests(STREAM, OTHER_STREAM)
    with proxy(relay.address, spoil_there=requests) as between:
        topics = {"topics": {"include": [name]}}
        command = configured(tmp_path, through(source, between.address), target, name, **topics)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60)
            async with writing(source, name, records=LITTLE):
                await mirror.wait_for(lambda: copied(mirror) > RECORDS, "it goes on")
                await mirror.wait_for(lambda: keeps_up(mirror), "nothing is said to lag")
                link_before = link_of(mirror)
                streams_before = events(mirror.stderr, "stream_begun")
                requests.update()
                back = LOOK_AGAIN_SECONDS + 30
                await mirror.wait_for(lambda: bool(link_of(mirror)), "there is a stream", back)
                at = copied(mirror)
                await mirror.wait_for(lambda: copied(mirror) > at, "it goes on by the stream")
            await mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60)
            link, log = link_of(mirror), mirror.stderr

    assert_exact(source.bootstrap, target.bootstrap, [name])
    words = f"this relay speaks {PROTOCOL} there; requested was twinsite-frames/9"
    assert not link_before
    assert streams_before == []
    (said,) = lines_of(log, "relay_without_streams")
    assert said["level"] == "warning"
    assert said["error"] == f"relay {between.address}: {words}"
    assert lines_of(relay.process.stderr, "mirror_not_let_in", code="other_protocol", why=words)
    assert 1 <= requests.refused <= 2, "once a minute"
    assert len(events(log, "stream_begun")) == 1
    assert link["relay"] == between.address
    assert events(log, "stream_lost") == []


async def test_with_a_limit_nothing_is_read_from_a_relay_of_another_version_until_it_is_updated(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Brokers keep no limit of the link: every partition is BLOCKED and says why and what to do, and none of
    its records crosses the link. With the stream it goes on by itself, within the limit.
    """
    name = await written(source, topic, "another-version-limited")
    requests = Requests(STREAM, OTHER_STREAM)
    answers: list[int] = []
    with proxy(relay.address, lambda _, __, data: answer_bytes(answers, data), requests) as between:
        link = {"relays": [between.address], "limits": [{"rate": "200 Mbit/s"}]}
        sections = {"topics": {"include": [name]}, "link": link}
        command = configured(tmp_path, through(source, between.address), target, name, **sections)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            for number in range(PARTITIONS):
                said = await says(mirror, name, "BLOCKED", "relay_too_old", number=number)
            again = requests.refused + ASKED_AGAIN
            await mirror.wait_for(lambda: requests.refused >= again, "it has asked again", 60)
            before, crossed = mirror.status(), sum(answers)
            ends = watermarks(target.bootstrap, name)
            requests.update()
            await mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60)
            after, log = mirror.status(), mirror.stderr

    assert_exact(source.bootstrap, target.bootstrap, [name])
    assert f"this relay speaks {PROTOCOL} there" in said["detail"]
    assert "the rates of link.limits cannot be kept" in said["detail"]
    assert said["hint"].startswith("Update the relay, or remove link.limits")
    assert before["link"] is None
    assert {one["records"] for one in before["partitions"]} == {0}
    assert {end for _, end in ends.values()} == {0}
    assert crossed < RECORDS * VALUE_BYTES / 10, "questions and their answers only, however often it asks"
    assert after["link"]["rate_limit_bytes_per_second"] == LIMIT_BYTES_PER_SECOND
    assert {one["state"] for one in after["partitions"]} <= {"ACTIVE", "LAGGING"}
    assert lines_of(log, "relay_without_streams") == []
    assert "the rates of link.limits cannot be kept" in lines_of(log, "stream_lost")[0]["error"]


async def test_a_mirror_that_asks_for_brokers_in_another_version_ends(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Without them nothing can be done: it ends with both versions in its words, and not with a copy of nothing.
    """
    name = await topic(source, prefix="another-way")
    with proxy(relay.address, spoil_there=Requests(TO_BROKERS, OTHER_TO_BROKERS)) as between:
        done = await twinsite(*once(through(source, between.address), target, name, name), work_dir=tmp_path)

    assert done.code == 1
    assert "this relay speaks twinsite-kafka/1 there; requested was twinsite-kafka/9" in done.stderr


class Said:
    """Puts something else in the place of the first documents of each stream, of one of its two sides.

    Args:
        changes: What becomes of a document of some kind of message.
        is_there: What the mirror says is meant, else what the relay does.

    Attributes:
        changed: How many were changed.
    """

    def __init__(self, changes: Mapping[int, dict[str, object]], *, is_there: bool = False) -> None:
        self.changed = 0
        self._changes, self._is_there = changes, is_there
        self._streams: set[int] = set()
        self._left: dict[int, set[int]] = {}
        self._torn: dict[int, bytes] = {}
        self._ended = threading.Event()

    def end(self) -> None:
        """Change nothing of what begins from now on."""
        self._ended.set()

    def there(self, number: int, before: int, data: bytes) -> bytes:
        """What goes to the relay."""
        if not before and data.startswith(b"GET /v1/frames HTTP") and not self._ended.is_set():
            self._left[number] = set(self._changes)
            return data
        return self._pass(number, data) if self._is_there else data

    def back(self, number: int, before: int, data: bytes) -> bytes:
        """What comes from it, behind the head of its answer, which comes by itself."""
        return data if self._is_there or not before else self._pass(number, data)

    def _pass(self, number: int, data: bytes) -> bytes:
        left = self._left.get(number)
        if not left:
            return data
        came, passed = self._torn.pop(number, b"") + data, b""
        while left and len(came) >= 4 and len(came) >= (size := 4 + int.from_bytes(came[:4])):
            passed, came = passed + self._changed(left, came[:size]), came[size:]
        if not left:
            return passed + came
        self._torn[number] = came
        return passed

    def _changed(self, left: set[int], message: bytes) -> bytes:
        kind = message[4]
        if kind not in left:
            return message
        left.discard(kind)
        ((_, payload),) = Messages().received(message)
        document = messages.document(payload) | self._changes[kind]
        self.changed += 1
        side = Up if self._is_there else Down
        return messages.say(side(kind), {key: value for key, value in document.items() if value is not None})


async def test_a_relay_of_a_later_version_may_say_more_of_itself_and_an_older_one_less(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A mirror passes over what it does not know, and does without what came with a later version.
    """
    name = await written(source, topic, "more-fields")
    said = Said({Down.WELCOME: NOVELTY, Down.CHOICE: {**NOVELTY, "connections": None}})
    with proxy(relay.address, said.back, said.there) as between:
        command = configured(
            tmp_path, through(source, between.address), target, name, topics={"include": [name]}
        )
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60)
            link, log = link_of(mirror), mirror.stderr

    assert_exact(source.bootstrap, target.bootstrap, [name])
    assert said.changed == 2
    assert link["why"]
    assert len(events(log, "stream_begun")) == 1
    assert events(log, "stream_lost") == []


async def test_a_mirror_of_a_later_version_may_say_more_of_itself(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A relay passes over what it does not know, and sends as ever: over the first stream, and without a word.
    """
    name = await written(source, topic, "more-said")
    said = Said({Up.HELLO: NOVELTY}, is_there=True)
    with proxy(relay.address, said.back, said.there) as between:
        done = await twinsite(*once(through(source, between.address), target, name, name), work_dir=tmp_path)

    assert done.code == 0, done.missing
    assert_exact(source.bootstrap, target.bootstrap, [name])
    assert said.changed == 1
    assert len(events(done.stderr, "stream_begun")) == 1
    assert events(done.stderr, "stream_lost") == []
    assert events(done.stderr, "relay_without_streams") == []


async def test_a_mirror_that_says_what_no_relay_takes_is_told_what_it_was(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    What a field may say does not change within a version: a relay refuses it by its name. The copy is LAGGING
    then, and says why. Nothing is copied meanwhile, and all of it afterwards by a stream.
    """
    name = await written(source, topic, "other-said")
    said = Said({Up.HELLO: {"isolation": 7}}, is_there=True)
    with proxy(relay.address, said.back, said.there) as between:
        sections = {"topics": {"include": [name]}, "lagging_after_seconds": 2}
        command = configured(tmp_path, through(source, between.address), target, name, **sections)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: said.changed >= ASKED_AGAIN, "it has asked again")
            told = "isolation: Input should be less than or equal to 1"
            await mirror.wait_for(
                lambda: any(told in one["detail"] for one in partitions(mirror)), "the status says why"
            )
            before = copied(mirror)
            said.end()
            await mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60)
            link, log = link_of(mirror), mirror.stderr

    assert_exact(source.bootstrap, target.bootstrap, [name])
    assert before == 0
    assert f"relay {between.address}: hello: {told}" in lines_of(log, "stream_lost")[0]["error"]
    assert lines_of(relay.process.stderr, "stream_refused", code="bad_message")
    assert link["relay"] == between.address
    assert events(log, "relay_without_streams") == []
