"""Durable state in one file, for a mirror that may not keep a topic on its target.

The file is written whole to a temporary name, forced to disk, and renamed over the
old one, which stays beside it as ``<name>.previous``. A person can read it: one line
of JSON a key, text as text, anything else in base64, after a first line with the
number of keys and the CRC-32C of all that follows.

A damaged file is refused, and the one before it is never taken in its place by
itself: it may lack a run of an offset map, and records would be copied twice.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path

from crc32c import crc32c

from checkpoint.errors import CorruptStateError, StateUnavailableError
from checkpoint.store import apply

FORMAT = "twinsite-state"
VERSION = 1


class FileStore:
    """A store in a file of its own. The first to use it has it until :meth:`close`, or its process ends.

    Others are refused with :class:`StateUnavailableError`, by a lock on ``<name>.lock``.

    Args:
        path: Of the file; its directory must exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._items: dict[str, bytes] | None = None
        self._held: int | None = None
        self._lock = asyncio.Lock()

    @property
    def previous(self) -> Path:
        """The file as it was before the last put."""
        return self._path.with_name(self._path.name + ".previous")

    async def load(self) -> dict[str, bytes]:
        async with self._lock:
            self._items = await asyncio.to_thread(self._read)
            return dict(self._items)

    async def put(self, items: Mapping[str, bytes | None]) -> None:
        async with self._lock:
            known = self._items if self._items is not None else await asyncio.to_thread(self._read)
            after = dict(known)
            for key, value in items.items():
                apply(after, key, value)
            await asyncio.to_thread(self._write, after)
            self._items = after

    async def close(self) -> None:
        async with self._lock:
            self._items = None
            if self._held is not None:
                os.close(self._held)
                self._held = None

    def _hold(self) -> None:
        """Take the lock, unless we have it. It is never waited for."""
        if self._held is not None:
            return
        try:
            lock = os.open(self._path.with_name(self._path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StateUnavailableError(f"the lock of the state file cannot be written: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise StateUnavailableError(f"{self._path} is in use by another mirror") from error
        self._held = lock

    def _read(self) -> dict[str, bytes]:
        self._hold()
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StateUnavailableError(f"the state file cannot be read: {error}") from error
        try:
            return decode(data)
        except CorruptStateError as error:
            hint = f"the state before the last change is in {self.previous}; it may be too old to go on with"
            raise CorruptStateError(f"{self._path}: {error}", hint=hint) from error

    def _write(self, items: dict[str, bytes]) -> None:
        temporary = self._path.with_name(self._path.name + ".new")
        self._hold()
        try:
            with temporary.open("wb") as file:
                file.write(encode(items))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):
                self._keep_previous()
            temporary.replace(self._path)
            self._force_directory()
        except OSError as error:
            raise StateUnavailableError(f"the state file cannot be written: {error}") from error

    def _keep_previous(self) -> None:
        """A second name for the file as it is: there is no moment without a file under the first."""
        self.previous.unlink(missing_ok=True)
        self.previous.hardlink_to(self._path)

    def _force_directory(self) -> None:
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def encode(items: Mapping[str, bytes]) -> bytes:
    """The content of the file."""
    body = b"".join(json.dumps(_line(key, value)).encode() + b"\n" for key, value in items.items())
    head = {"format": FORMAT, "version": VERSION, "keys": len(items), "crc32c": f"{crc32c(body):08x}"}
    return json.dumps(head).encode() + b"\n" + body


def _line(key: str, value: bytes) -> dict[str, str]:
    try:
        return {"key": key, "text": value.decode()}
    except UnicodeDecodeError:
        return {"key": key, "base64": base64.b64encode(value).decode()}


def decode(data: bytes) -> dict[str, bytes]:
    """The keys and values of a file.

    Raises:
        CorruptStateError: It is damaged, or of a version this program does not know.
    """
    first, _, body = data.partition(b"\n")
    try:
        head = json.loads(first)
        name, version, keys, crc = head["format"], head["version"], head["keys"], head["crc32c"]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptStateError(f"the first line is not that of a state file: {error!r}") from error
    if name != FORMAT or version != VERSION:
        raise CorruptStateError(
            f"it is {name!r} version {version!r}, this program reads {FORMAT!r} {VERSION}"
        )
    if f"{crc32c(body):08x}" != crc:
        raise CorruptStateError("the content does not match its CRC")
    items = dict(_read_line(line) for line in body.splitlines())
    if len(items) != keys:
        raise CorruptStateError(f"it holds {len(items)} keys, {keys} were written")
    return items


def _read_line(line: bytes) -> tuple[str, bytes]:
    fields = json.loads(line)
    if "text" in fields:
        return fields["key"], fields["text"].encode()
    return fields["key"], base64.b64decode(fields["base64"])
