"""The port of a mirror that says what a test has put there."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeMirror(ThreadingHTTPServer):
    """Answers each path with what a test has put there, and notes what it was asked with which bodies."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, tuple[int, object]] = {}
        self.asked: list[tuple[str, str, str | None]] = []
        self.bodies: list[object] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        mirror = self.server
        assert isinstance(mirror, FakeMirror)
        mirror.asked.append((self.command, self.path, self.headers["X-Twinsite-Control"]))
        status, document = mirror.answers.get(self.path.split("?")[0], (404, {"detail": "no such page"}))
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        mirror = self.server
        assert isinstance(mirror, FakeMirror)
        mirror.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the output of a test is its own."""


@contextmanager
def serving() -> Iterator[FakeMirror]:
    """One that answers until the end of the block."""
    with FakeMirror() as mirror:
        thread = threading.Thread(target=mirror.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield mirror
        finally:
            mirror.shutdown()
            thread.join()
