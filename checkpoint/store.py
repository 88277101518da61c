"""Where a flow keeps its durable state: keys and values, small, and written rarely.

What every store promises; one suite of tests checks all stores for it:

- once :meth:`StateStore.put` has returned, every later ``load`` finds what it wrote, whatever crashes;
- a failed put may be there, or not, or in part: the caller puts again or loads again;
- items take effect in the order given, so a crash leaves the first few of them;
- the last value of a key counts; None removes the key;
- ``load`` reports damage and never passes it on.
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
            StateTakenOverError: Somebody else has written meanwhile.
        """


def apply(items: dict[str, bytes], key: str, value: bytes | None) -> None:
    """Set a value, or remove the key when the value is None."""
    if value is None:
        items.pop(key, None)
    else:
        items[key] = value


def applied(items: Mapping[str, bytes], changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """A copy of the items with the changes applied; changed ones come last, in the order of the changes."""
    out = dict(items)
    for key, value in changes.items():
        out.pop(key, None)
        apply(out, key, value)
    return out


def changes_between(items: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """The changes that turn ``items`` into ``wanted``, in an order that leaves no hole if it is cut off.

    Removals come first, the last item first; then what is missing or differs, in the order of ``wanted``. If
    the flow's own record is among it, that part is in the order of :func:`whole_in_order`: that record last.
    """
    gone: dict[str, bytes | None] = {key: None for key in reversed(list(items)) if key not in wanted}
    missing = {key: value for key, value in wanted.items() if items.get(key) != value}
    return gone | (whole_in_order(missing) if FLOW_KEY in missing else missing)
