"""Where a flow keeps its durable state: keys and values, small, written seldom.

The promises every store gives, held to by one suite of tests:

- what :meth:`StateStore.put` returned from is found by every later ``load``, whatever crashes;
- a put that failed may be there or not, or in part: the caller puts again or loads again;
- items take effect in the order given, so a crash leaves the first few of them;
- the last value of a key counts, None removes it;
- damage is told by ``load``, never passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class StateStore(Protocol):
    """Durable keys and values of one flow."""

    async def load(self) -> dict[str, bytes]:
        """Everything there is.

        Raises:
            CorruptStateError: What is stored cannot be trusted.
            StateUnavailableError: It cannot be read just now.
        """

    async def put(self, items: Mapping[str, bytes | None]) -> None:
        """Set values, or remove keys with None. Durable when it returns.

        Raises:
            StateUnavailableError: It may not have been written.
        """


def apply(items: dict[str, bytes], key: str, value: bytes | None) -> None:
    """Set a value, or remove the key when the value is None."""
    if value is None:
        items.pop(key, None)
    else:
        items[key] = value
