"""Which transactions are open where the last file of a log begins, as its broker has noted.

Whenever a broker begins a file, it leaves a producer snapshot with the same name: what it knows of all
producers at that offset. The ``.log`` files say the same only if they are read from the first one on.

Sources: Kafka's ``ProducerStateManager``; KIP-98 (transactions).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from crc32c import crc32c

from spark_jobs.segments.logs import SegmentLog, SegmentsError

VERSION = 1
_HEADER = struct.Struct(">hI")
"""Version, and the CRC-32C of what follows."""
_COUNT = struct.Struct(">i")
_PRODUCER = struct.Struct(">qhiqiqiq")
"""Id, epoch, last sequence, last offset, its delta, timestamp, epoch of the coordinator, and where the open
transaction begins; -1 where there is none."""


def open_transactions(log: SegmentLog) -> Mapping[int, int] | None:
    """Where each transaction begins that is open at the start of the last file, by producer id.

    Returns:
        None if there is no snapshot, or it is damaged or of another version.

    Raises:
        SegmentsError: It cannot be read.
    """
    path = log.segments[-1].path.with_suffix(".snapshot")
    try:
        return _open_transactions(path.read_bytes())
    except (FileNotFoundError, struct.error):
        return None
    except OSError as error:
        raise SegmentsError(f"{log.name}: {path} cannot be read: {error.strerror}") from error


def _open_transactions(content: bytes) -> Mapping[int, int] | None:
    """
    Raises:
        struct.error: The content is no snapshot.
    """
    version, crc = _HEADER.unpack_from(content)
    if version != VERSION or crc != crc32c(content[_HEADER.size :]):
        return None
    producers = _PRODUCER.iter_unpack(content[_HEADER.size + _COUNT.size :])
    return {producer_id: begins for producer_id, *_, begins in producers if begins >= 0}
