"""MirrorMaker 2 runs from the harness, or figures against it mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.harness.checker import assert_exact, watermarks
from tests.harness.daemon import until
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.mm2 import DEFAULT, TUNED, mirror_maker

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("settings", [DEFAULT, TUNED], ids=["default", "tuned"])
async def test_mirror_maker_copies_a_topic(
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    settings: dict[str, object],
) -> None:
    """
    All records arrive in order under the same name.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(1000))
    await target.create_topic(name)

    with mirror_maker(source, target, name, work_dir=tmp_path, settings=settings) as maker:
        await until(
            lambda: watermarks(target.bootstrap, name)[0][1] >= 1000 or not maker.running,
            "all records arrive",
            120,
        )

        assert maker.running, maker.said
    assert assert_exact(source.bootstrap, target.bootstrap, [name], offsets="mapped") == 1000
