# Two commands do everything on a machine with Python >= 3.11, git and make:
#   make demo    sets up, trains on a real data set beside baselines, writes a report
#   make test    sets up, checks style and types, runs the tests
#   make docs    builds the documentation
#   make bench   measures rounds against the floor, into benchmarks/RESULTS.md (some minutes)
#   make bench-gpu   the same for what needs a GPU

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

export OMP_NUM_THREADS ?= 2

.PHONY: help demo docs test lint types tests slow bench bench-gpu clean

help:
	@sed -n 's/^#   //p' Makefile

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedloom needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	@echo "== setting up $(VENV) (once; takes a few minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $(READY)

demo: $(READY)
	@echo "== demo: 442 patients, four organisations, one model; and three baselines"
	@rm -rf out/demo
	@$(BIN)/fedloom run examples/diabetes.toml --out out/demo
	@echo "== the command is $(BIN)/fedloom; activate it with: . $(BIN)/activate"

docs: $(READY)
	@echo "== documentation (mkdocs)"
	@$(BIN)/python -m fedloom.config.reference > docs/run-file.md
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "site: out/site/index.html"

test: lint types tests

lint: $(READY)
	@echo "== style (ruff)"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)
	@echo "== types (mypy)"
	@$(BIN)/mypy

tests: $(READY)
	@echo "== tests (pytest)"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

slow: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

bench: $(READY)
	@$(BIN)/python -m benchmarks --write

bench-gpu: $(READY)
	@$(BIN)/python -m benchmarks.gpu

clean:
	rm -rf $(VENV) out build .pytest_cache .mypy_cache .ruff_cache .hypothesis
