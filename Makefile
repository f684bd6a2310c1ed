# Each target does its own set-up: a virtual environment in .venv, the install, the run.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: tune test browser slow examples check bench tables reports clean

tune: $(VENV)/.installed          ## the main job on the embedded workload
	$(BIN)/stoker tune resnet18 --data jpeg --mode infer --items 512 --max-batch 64 --current batch=32,workers=0

test: $(VENV)/.installed-dev      ## the tests, two at a time: most of them wait for processes
	$(BIN)/python -m pytest -n 2 --dist worksteal

browser: $(VENV)/.installed-dev   ## what the browser tests of reports need: Debian's chromium
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -qq --yes --no-install-recommends chromium)

slow: $(VENV)/.installed-dev      ## the slow tests, which `make test` leaves out
	$(BIN)/python -m pytest -m slow

examples: $(VENV)/.installed-dev  ## profile every example with the libraries that it uses, and check what is found
	$(BIN)/python -m pip install --quiet --editable '.[dev,examples]'
	$(BIN)/python -m pytest tests/examples -m 'slow or not slow'

check: $(VENV)/.installed-dev     ## linters and types
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev     ## the benchmarks that need no GPU
	$(BIN)/python benchmarks/truth.py
	$(BIN)/python benchmarks/items.py
	$(BIN)/python benchmarks/overhead.py

reports: $(VENV)/.installed-dev   ## draw the reports of the docs again
	$(BIN)/python benchmarks/reports.py

tables: $(VENV)/.installed-dev    ## copy measured figures into README and docs
	$(BIN)/python benchmarks/tables.py

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Stoker needs Python 3.11 or newer, and none was found" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
