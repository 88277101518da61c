# Every target installs what it misses first (scripts/bootstrap).
PYTHON := .venv/bin/python
# Set in many images. Each of hundreds of started processes would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE
# One more than the cores of CI: much of its time a test waits, for brokers to notice or to come back.
TEST_WORKERS := 3
.PHONY: help bootstrap check test fuzz chaos demo bench bench-wan lock clean

help: ## Show the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile

bootstrap: ## Install Debian packages, the virtual environment and Kafka's jars
	@scripts/bootstrap

check: bootstrap ## Format, lint, types, import rules
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

test: ## All tests, on real brokers
	@scripts/bootstrap tests
	$(PYTHON) -m pytest -q -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder --timeout=480

demo: bootstrap ## Mirror real data through relays over a long link, crashes included, and prove the copy
	$(PYTHON) -m bench.demo

fuzz: bootstrap ## Hostile peers, for longer than in the tests: FUZZ_SEED=7 FUZZ_SECONDS=600
	$(PYTHON) -m pytest -q -s tests/faults/test_hostile_peers.py tests/faults/test_hostile_relay.py

chaos: bootstrap ## Faults at random, for longer than in the tests: CHAOS_SEED=7 CHAOS_SECONDS=600
	$(PYTHON) -m pytest -q -s tests/faults/test_many_faults.py

bench: bootstrap ## Compare with MirrorMaker 2 on the same data in the same run
	$(PYTHON) -m bench.run

bench-wan: bootstrap ## Compare with MirrorMaker 2 over emulated long links; needs root
	$(PYTHON) -m bench.over_the_link

lock: bootstrap ## Pin the newest versions that fit pyproject.toml, with hashes
	.venv/bin/uv pip compile -q --generate-hashes --no-emit-index-url --no-header --no-annotate --python-version 3.11 \
	  pyproject.toml -o requirements.lock
	.venv/bin/uv pip compile -q --generate-hashes --no-emit-index-url --no-header --no-annotate --python-version 3.11 \
	  --extra dev pyproject.toml -o requirements-dev.lock

clean: ## Remove what was built and cached, not the virtual environment
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
