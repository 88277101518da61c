"""What is called by the name of an error code is that code."""

from __future__ import annotations

import kafka.errors
import pytest

from mirror import broker_codes

CODES = {name: code for name, code in vars(broker_codes).items() if name.isupper()}
OTHERWISE = {"MESSAGE_SIZE_TOO_LARGE": "MESSAGE_TOO_LARGE"}
"""What kafka-python does not call as the protocol does."""


@pytest.mark.parametrize(("name", "code"), CODES.items(), ids=CODES)
def test_a_code_has_the_name_that_the_protocol_gives_it(name: str, code: int) -> None:
    """
    By it decisions are read; a slip of a digit would be seen by nobody.
    """
    known = kafka.errors.for_code(code).message

    assert OTHERWISE.get(known, known) == name
