"""Prometheus itself, which scrapes what a test runs, and is asked what it has stored."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.harness.daemon import HOST, Daemon, free_ports

SCRAPE_SECONDS = 1
AGO_SECONDS = 3600.0


class Prometheus(Daemon):
    """One that keeps exemplars, as Grafana asks for them.

    Args:
        folder: Its own, which does not exist yet.
        target: What it scrapes, ``HOST:PORT``.
    """

    def __init__(self, folder: Path, target: str) -> None:
        folder.mkdir()
        port = free_ports(1)[0]
        settings = folder / "prometheus.yml"
        scraped = {"job_name": "twinsite", "static_configs": [{"targets": [target]}]}
        often = {"scrape_interval": f"{SCRAPE_SECONDS}s", "scrape_timeout": f"{SCRAPE_SECONDS}s"}
        settings.write_text(yaml.safe_dump({"global": often, "scrape_configs": [scraped]}))
        options = {
            "config.file": settings,
            "storage.tsdb.path": folder / "series",
            "web.listen-address": f"{HOST}:{port}",
            "enable-feature": "exemplar-storage",
        }
        command = ["prometheus", *(f"--{name}={value}" for name, value in options.items())]
        super().__init__("Prometheus", port, folder, command)

    def ask(self, path: str, **parameters: Any) -> Any:
        """What its API answers: ``data`` of the document."""
        with urlopen(f"http://{self.address}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def healthy(self) -> bool:
        """Whether its last scrape succeeded."""
        return [one["health"] for one in self.ask("targets")["activeTargets"]] == ["up"]

    def exemplars(self, metric: str) -> list[dict[str, str]]:
        """Labels of all exemplars that it has kept, within an hour of now."""
        now = time.time()
        found = self.ask("query_exemplars", query=metric, start=now - AGO_SECONDS, end=now + AGO_SECONDS)
        return [one["labels"] for series in found for one in series["exemplars"]]

    def _serves(self) -> bool:
        try:
            with urlopen(f"http://{self.address}/-/ready", timeout=5):
                return True
        except (URLError, ConnectionError):
            return False


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[Prometheus]:
    """A Prometheus for as long as the block lasts; arguments as its own."""
    daemon = Prometheus(folder, target)
    try:
        await daemon.start()
        yield daemon
    finally:
        daemon.discard()
