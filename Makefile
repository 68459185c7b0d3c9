# Two commands do everything on a machine with Python >= 3.11, git and make:
#   make demo    sets up, trains on a real data set beside baselines, writes a report
#   make test    sets up, checks style and types, runs the tests
#   make docs    builds the documentation: out/site/index.html
#   make graph   draws the packages' imports into ARCHITECTURE.md
#   make coverage    runs the tests and reports lines that none of them runs
#   make wheel   builds the package into dist/
#   make bench   measures rounds against the floor, into benchmarks/RESULTS.md (some minutes)
#   make bench-gpu   the same for what needs a GPU

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

export OMP_NUM_THREADS ?= 2

.PHONY: help demo docs graph test lint types tests coverage slow wheel bench bench-gpu clean

help:
	@sed -n 's/^#   //p' Makefile

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedloom needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	@echo "== setting up $(VENV) (once; takes a few minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)
	@echo "== demo: 442 patients, four organisations, one model; and five baselines"
	@rm -rf out/demo
	@$(BIN)/fedloom run examples/diabetes.toml --out out/demo
	@echo "== the command is $(BIN)/fedloom; activate it with: . $(BIN)/activate"

docs: $(READY)
	@echo "== documentation (mkdocs)"
	@$(BIN)/python -m fedloom.config.reference > docs/run-file.md
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "site: out/site/index.html"

graph: $(READY)
	@$(BIN)/python tools/graph.py

test: lint types tests

lint: $(READY)
	@echo "== style (ruff)"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "== imports (import-linter)"
	@found=$$($(BIN)/lint-imports --no-logo --no-cache) || { echo "$$found"; exit 1; }

types: $(READY)
	@echo "== types (mypy)"
	@$(BIN)/mypy

tests: $(READY)
	@echo "== tests (pytest)"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

coverage: $(READY)
	@echo "== tests, and lines that none of them runs (coverage)"
	@OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest; \
	  $(BIN)/python -m coverage combine --quiet; $(BIN)/python -m coverage report

slow: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

bench: $(READY)
	@$(BIN)/python -m benchmarks --write

bench-gpu: $(READY)
	@$(BIN)/python -m benchmarks.gpu

clean:
	rm -rf $(VENV) out build .pytest_cache .mypy_cache .ruff_cache .hypothesis
