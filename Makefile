# make hy3: the reference kernels, generated, compiled, verified.  make test: the tests.  make help: the rest.
PYTHON ?= python3
VENV ?= .venv
# On a machine with a GPU and torch: make venv VENV_FLAGS=--system-site-packages keeps the torch and Triton that are installed.
VENV_FLAGS ?=
TORCH ?= $(if $(findstring system-site-packages,$(VENV_FLAGS)),torch,torch==2.13.0)
TRITON ?= $(if $(findstring system-site-packages,$(VENV_FLAGS)),triton,triton==3.6.0)
JOBS ?= 2

BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help hy3 test lint golden venv clean

help:
	@echo 'make hy3     generate, compile and verify every recipe under recipes/hy3; report in build/hy3/'
	@echo 'make test    the tests ($(JOBS) processes; JOBS=n)'
	@echo 'make lint    ruff and mypy'
	@echo 'make golden  refresh the golden copies of generated modules in tests/golden'
	@echo 'make venv    the virtual environment $(VENV) (VENV_FLAGS=--system-site-packages keeps an installed torch)'
	@echo 'make clean   remove what was built'

venv: $(READY)

# torch before the rest, so that the release is ours to choose; Triton last, because a CUDA build of torch asks for its own
$(READY): pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV_FLAGS) $(VENV)
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(BIN)/python -m pip install --quiet '$(TRITON)'
	@touch $@

hy3: $(READY)
	$(BIN)/tle-attn hy3 --jobs $(JOBS)

test: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy

golden: $(READY)
	$(BIN)/python -m tests.test_golden

clean:
	rm -rf build dist $(VENV) *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
