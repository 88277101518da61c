"""A flow's durable state without a broker."""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint.store import apply


class MemoryStore:
    """A store that lives as long as the process, with the same promises as the one in a topic.

    Args:
        items: Shared with whoever passes it: two stores on one dict see each other's writes.
    """

    def __init__(self, items: dict[str, bytes] | None = None) -> None:
        self._items = {} if items is None else items

    async def load(self) -> dict[str, bytes]:
        return dict(self._items)

    async def put(self, items: Mapping[str, bytes | None]) -> None:
        for key, value in items.items():
            apply(self._items, key, value)
