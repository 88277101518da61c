"""Ask a running mirror over its port.

Only the machine in the address is contacted: no proxy, no redirect. A problem document
becomes an error with its detail and its hint.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import click

from mirror.errors import ConnectionFailedError, ExitCode, TwinsiteError, UsageError
from mirror.model import CONTROL_HEADER

URL_DEFAULT = "http://127.0.0.1:9640"
ANSWER_BYTES_MAX = 256 * 1024 * 1024
TIMEOUT_SECONDS = 10.0
HINT_UNREACHABLE = "check that the mirror runs, and that --url or TWINSITE_URL has its address and api.port"
HINT_NOTHING_THERE = (
    f"--url must be scheme, host and port only, as in {URL_DEFAULT}; a relay has no topics: ask its mirrors"
)
UNKNOWN_PARTITION = "unknown_partition"
"""The code of a 404 for a path that a mirror does serve."""
CONTROL_HEADERS = {CONTROL_HEADER: "yes", "Content-Type": "application/json"}

_EXIT_CODES = {
    **dict.fromkeys((400, 404), ExitCode.USAGE),
    **dict.fromkeys((403, 409, 502), ExitCode.REFUSED),
}

url_option: Callable[[Any], Any] = click.option(
    "--url",
    envvar="TWINSITE_URL",
    default=URL_DEFAULT,
    show_default=True,
    help="The port of the running mirror; also from TWINSITE_URL.",
)


class ProblemAnswerError(TwinsiteError):
    """The mirror understood the request and refuses it.

    Attributes:
        status: The HTTP status.
        document: The problem document (RFC 9457).
    """

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        super().__init__(
            str(document.get("detail") or f"status {status}"), hint=str(document.get("hint") or "")
        )
        self.status = status
        self.document = document
        self.exit_code = _EXIT_CODES.get(status, ExitCode.FAULT)


class MirrorClient:
    """The port of one mirror. Every method raises ConnectionFailedError if no mirror answers there."""

    def __init__(self, url: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """
        Raises:
            UsageError: The address is not valid.
        """
        if "@" in url:
            raise UsageError("--url: must not contain a user or a password", hint=f"as in {URL_DEFAULT}")
        self.url = url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        try:
            parts = urlsplit(self.url)
            self._host, self._port = parts.hostname or "", parts.port
            self._host.encode("idna")
            self._path = quote(parts.path, safe="/%")
        except ValueError:
            raise UsageError(f"--url {url!r}: is not a valid URL") from None
        if parts.scheme not in {"http", "https"} or not self._host or parts.query:
            raise UsageError(f"--url {url!r}: must be a URL as in {URL_DEFAULT}")
        self._scheme = parts.scheme

    def get(self, *path: str, **query: object) -> dict[str, Any]:
        """The document at a path.

        Raises:
            ProblemAnswerError: The mirror refuses.
        """
        return self._ask("GET", path, f"?{urlencode(query)}" if query else "", {})

    def post(self, *path: str, **fields: int | None) -> dict[str, Any]:
        """Send the command that a path names.

        Raises:
            ProblemAnswerError: The mirror refuses.
        """
        return self._ask("POST", path, "", CONTROL_HEADERS, json.dumps(fields).encode())

    def _ask(
        self,
        method: str,
        path: tuple[str, ...],
        query: str,
        headers: dict[str, str],
        body: bytes | None = None,
    ) -> dict[str, Any]:
        target = "/".join([self._path, *(quote(part, safe="") for part in path)]) + query
        try:
            status, body = self._exchange(method, target, headers, body)
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionFailedError(f"{self.url}: {_in_words(error)}", hint=HINT_UNREACHABLE) from error
        document = self._document(status, body)
        if status == 404 and document.get("code") != UNKNOWN_PARTITION:
            raise ConnectionFailedError(
                f"{self.url}: a mirror serves nothing at this address", hint=HINT_NOTHING_THERE
            )
        if status != 200:
            raise ProblemAnswerError(status, document)
        return document

    def _exchange(
        self, method: str, target: str, headers: dict[str, str], sent: bytes | None
    ) -> tuple[int, bytes]:
        kind = http.client.HTTPSConnection if self._scheme == "https" else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout_seconds)
        try:
            connection.request(method, target, body=sent, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(ANSWER_BYTES_MAX)
        finally:
            connection.close()

    def _document(self, status: int, body: bytes) -> dict[str, Any]:
        try:
            document = json.loads(body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise ConnectionFailedError(
                f"{self.url}: status {status} without JSON: this is not a mirror", hint=HINT_UNREACHABLE
            )
        return document


def _in_words(error: OSError | http.client.HTTPException) -> str:
    """Why there is no answer; never the bytes of one that is not HTTP."""
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, OSError):
        return "the answer is not HTTP: this is not the port of a mirror"
    return str(error) or type(error).__name__
