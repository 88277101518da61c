"""The settings of a cluster as options of Kafka's Java consumer; what Java cannot do is refused.

That Java takes the options is tried in tests/spark/test_secured.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mirror.config_cluster import ClusterSettings
from mirror.consumer_options import consumer_options
from mirror.errors import AuthenticationError, TwinsiteError, UsageError
from tests.harness.security import Authority

TORN = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nabc\n-----END"


def options(**security: Any) -> dict[str, str]:
    document = {"bootstrap_servers": "a:1", "security": security}
    return consumer_options(ClusterSettings.model_validate(document))


def options_with_key(folder: Path, key: Path, **security: Any) -> dict[str, str]:
    certificate = Authority(folder).issue("job").certificate
    return options(protocol="SSL", certificate_file=str(certificate), key_file=str(key), **security)


def test_a_key_of_the_older_form_is_refused_with_the_command_that_changes_it(tmp_path: Path) -> None:
    """
    The mirror reads it, Java does not.
    """
    key, old = ec.generate_private_key(ec.SECP256R1()), tmp_path / "old.key"
    old.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))

    with pytest.raises(UsageError, match="begins with EC PRIVATE KEY") as refused:
        options_with_key(tmp_path, old)

    assert f"openssl pkcs8 -topk8 -nocrypt -in {old}" in refused.value.hint


def test_a_key_that_java_cannot_decrypt_is_refused(tmp_path: Path) -> None:
    """
    What OpenSSL and cryptography encrypt with today.
    """
    locked = Authority(tmp_path, "other").issue("locked", password="x").key

    with pytest.raises(UsageError, match="is encrypted with PBES2") as refused:
        options_with_key(tmp_path, locked, key_password="x")

    assert "-v1 PBE-SHA1-3DES" in refused.value.hint


def test_a_password_for_a_key_in_the_clear_is_not_passed_on(tmp_path: Path) -> None:
    """
    Java would take the key for an encrypted one.
    """
    clear = Authority(tmp_path, "other").issue("clear").key

    made = options_with_key(tmp_path, clear, key_password="x")

    assert made["kafka.ssl.keystore.key"] == clear.read_text()
    assert "kafka.ssl.key.password" not in made


@pytest.mark.parametrize(
    ("text", "security", "said"),
    [
        ("nothing of the kind", {}, "holds no private key"),
        (TORN, {}, "key_password is not set"),
        (TORN, {"key_password": "x"}, "it is not base64"),
    ],
)
def test_a_file_that_cannot_be_a_key_is_named(
    text: str, security: dict[str, str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(text)

    with pytest.raises(AuthenticationError, match=said):
        options_with_key(tmp_path, tmp_path / "key", **security)


def test_a_token_that_somebody_else_keeps_is_refused(tmp_path: Path) -> None:
    sasl = {"mechanism": "OAUTHBEARER", "token": {"file": str(tmp_path / "token")}}

    with pytest.raises(TwinsiteError, match=r"security\.sasl\.token") as refused:
        options(protocol="SASL_SSL", sasl=sasl)

    assert refused.value.exit_code == 2
    assert "token_endpoint" in refused.value.hint
