# `make demo` and `make test` need only Python >= 3.11 and make: they set up .venv themselves.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install --quiet --disable-pip-version-check -c requirements.lock

.PHONY: demo docs test test-fast test-slow test-faults bench reproduction lint format clean

$(VENV)/.base: pyproject.toml requirements.lock
	@echo "setting up $(VENV) (about two minutes the first time)"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "calattn needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) -e '.[dev,bench]'
	@touch $@

demo: $(VENV)/.base
	$(PY) examples/demo.py

# The site embeds the demo's page; where there is none yet, the demo runs first.
docs: $(VENV)/.dev
	test -f runs/demo/page.html || $(PY) examples/demo.py
	$(PY) -m sphinx -q -W --keep-going -j 1 -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

lint: $(VENV)/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(VENV)/.dev
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

test: lint
	$(PY) -m pytest -n 2 --dist worksteal

test-fast: $(VENV)/.dev
	$(PY) -m pytest -n 2 --dist worksteal -x

test-slow: $(VENV)/.dev
	$(PY) -m pytest -m slow

# All faults, about half an hour; writes results/faults.json and the table of docs/reliability.md.
test-faults: $(VENV)/.dev
	rm -f runs/faults.jsonl; mkdir -p runs
	CALATTN_FAULTS_FULL=1 CALATTN_FAULTS_TALLY=runs/faults.jsonl $(PY) -m pytest -n 2 --timeout 1800 tests/faults
	$(PY) -m tests.faults.tally runs/faults.jsonl

bench: $(VENV)/.bench
	$(PY) -m benchmarks.metrics

# REPRODUCTION.md and the tables and figures of results/reproduction, from the committed results; trains nothing.
reproduction: $(VENV)/.base
	$(PY) -m reproduction --scale reduced --no-train --out results/reproduction --report REPRODUCTION.md

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist docs/_build docs/api src/*.egg-info
