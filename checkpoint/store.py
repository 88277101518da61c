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

from checkpoint.model import FLOW_KEY, whole_in_order


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


def applied(items: Mapping[str, bytes], changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Items with some changed, those in the order of the changes and behind the others."""
    out = dict(items)
    for key, value in changes.items():
        out.pop(key, None)
        apply(out, key, value)
    return out


def changes_between(items: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """What makes other items of these. Wherever that is cut off nothing is behind a hole: what is to go comes
    first, the last of it before the rest, and then what is to be there, as it was written; or, where the
    flow's own record is not there, with that behind all else.
    """
    gone: dict[str, bytes | None] = {key: None for key in reversed(list(items)) if key not in wanted}
    missing = {key: value for key, value in wanted.items() if items.get(key) != value}
    return gone | (whole_in_order(missing) if FLOW_KEY in missing else missing)
