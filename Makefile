# Everything a newcomer types. `make demo` and `make test` work from a clean clone.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EXTRAS := formats,gym,cluster,tensorboard,onnx,serve,pulseq,docs,dev
JOBS ?= 2
# Tests start many processes: each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test fast tutorials lint docs bench clean

setup: $(READY)

# The virtual environment is made once, and again when a pinned version changes.
$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found; kscout needs Python 3.11 or newer: make PYTHON=python3"; exit 1; }
	@echo "setting up $(VENV), once: a minute or more, most of it the download of torch"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]' || { echo "the packages were not installed, see above; fix the problem and run make again"; exit 1; }
	@touch $(READY)

demo: $(READY)
	@$(BIN)/kscout demo --out runs/demo

test: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not cuda and not tutorial"

fast: $(READY)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow and not cuda and not browser and not tutorial"

lint: $(READY)
	$(BIN)/ruff format --check src tests lab examples website
	$(BIN)/ruff check src tests lab examples website
	$(BIN)/mypy

# Every page of docs/tutorials, from top to bottom.
tutorials: $(READY)
	$(BIN)/python -m pytest -q -n $(JOBS) -m tutorial tests/test_tutorials.py

# The site, into site/: a warning, such as a link that leads nowhere, is an error.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: $(READY)
	$(BIN)/python lab/bench.py

clean:
	rm -rf $(VENV) runs site .pytest_cache .mypy_cache .ruff_cache
