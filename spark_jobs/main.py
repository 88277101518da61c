"""The entry for ``spark-submit``: ``spark-submit ... spark_jobs/main.py --config flow.yaml``.

The same as ``twinsite reconcile``, with the master and the jars that ``spark-submit`` is given.
"""

from __future__ import annotations

import sys

from mirror.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["reconcile", *sys.argv[1:]]))
