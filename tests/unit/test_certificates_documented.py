"""The certificates of docs/link.md: its commands make files with which both sides accept each other."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from mirror.kafka.tls import TlsOptions, make_context, make_server_context
from mirror.relay.identity import names_of

PAGE = (Path(__file__).parents[2] / "docs" / "link.md").read_text()
[COMMANDS] = re.findall(r"\n## Certificates\n.*?```sh\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_the_commands_make_what_relay_and_mirror_need(tmp_path: Path) -> None:
    """
    The mirror trusts the relay by its name, the relay knows the mirror by its identity, and nobody else may
    read the keys.
    """
    subprocess.run(["sh", "-ec", COMMANDS], cwd=tmp_path, check=True, capture_output=True)
    authority, relay, mirror = (tmp_path / f"{name}.pem" for name in ("link-ca", "relay-1", "mirror-west"))

    shown = _shown(
        make_context(TlsOptions(authority, mirror)),
        make_server_context(TlsOptions(authority, relay)),
        "relay-1.east",
    )

    assert shown[0] == "spiffe://example.org/mirror/west"
    assert {file.stat().st_mode & 0o077 for file in (relay, mirror, tmp_path / "link-ca.key")} == {0}


def _shown(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> tuple[str, ...]:
    """The names of the certificate that a client shows to a server in a handshake.

    Raises:
        ssl.SSLError: One of them refuses the other.
    """
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, there, server_hostname=name)
    theirs = server.wrap_bio(there, back, server_side=True)
    for side in (ours, theirs, ours, theirs):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return names_of(theirs.getpeercert() or {})
