# make serve      install, pull the default model, serve it on 127.0.0.1:8000
# make test       everything a change must pass (10 minutes at most); make test-full: what takes longer
# make lint       the checks without the tests; make format mends what can be mended
# make sanitize  the kernels' tests on builds that watch memory and races (a quarter of an hour)
# make build      compile the kernels again after a change (seconds)
# make clean      remove .venv, .venv-clients and everything built
#
# Paths are relative on purpose: the folder may have spaces in its name, and so may the model.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help serve test test-full sanitize lint format build clean
SHELL := /bin/sh
MAKEFLAGS += --no-print-directory

MODEL ?= smollm2
HOST ?= 127.0.0.1
PORT ?= 8000
ARGS ?=

# The first Python that is 3.11 or newer and can make environments.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
KERNELS := CMakeLists.txt $(wildcard kernels/*)
quoted = '$(subst ','\'',$(1))'
CXX_FILES = $(wildcard kernels/*.cpp kernels/*.h kernels/*.inc tests/kernels/*/*.h tests/kernels/*/*.cpp)

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

serve: .venv/.installed
	@exec $(BIN)/python -m octavo serve $(call quoted,$(MODEL)) --host $(call quoted,$(HOST)) --port $(call quoted,$(PORT)) $(ARGS)

test: lint
	$(BIN)/python -m pytest -m "not slow"

test-full: .venv/.installed-dev
	$(BIN)/python -m pytest -m slow -o faulthandler_timeout=1800

sanitize: .venv/.installed-dev
	$(BIN)/python -m tests.kernels.sanitize

lint: .venv/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/lint-imports
	$(BIN)/mypy

format: .venv/.installed-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CXX_FILES)

build: .venv/.tools
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-build-isolation --no-deps --editable .

clean:
	rm -rf .venv .venv-clients build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment has the build tools in it, so that a change compiles one file and not everything again.
.venv/.tools: pyproject.toml
	@[ -n "$(PYTHON)" ] || { echo "error: no Python 3.11 or newer with venv was found; install python3 and python3-venv," \
		"or give one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Preparing .venv with $(PYTHON) …"
	@[ -x $(BIN)/python ] || $(call quoted,$(PYTHON)) -m venv .venv
	@$(BIN)/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' > .venv/build-requires.txt
	@$(PIP) install -r .venv/build-requires.txt
	@command -v cmake >/dev/null || $(PIP) install cmake
	@touch $@

.venv/.installed: .venv/.tools $(KERNELS)
	@echo "Installing Octavo and compiling its kernels (a minute or two the first time) …"
	@$(PIP) install --no-build-isolation --editable .
	@$(BIN)/python -c 'import octavo._kernels' 2>/dev/null || { \
		echo "note: no C++ compiler or no Python headers, so the kernels were not built and the slow NumPy backend will serve;" \
			"install g++ and python3-dev, then run: make clean serve" >&2; \
		$(PIP) install --no-build-isolation --editable '.[reference]'; }
	@touch $@

.venv/.installed-dev: .venv/.tools $(KERNELS)
	@echo "Installing Octavo with the test tools and compiling its kernels …"
	@$(PIP) install --no-build-isolation --editable '.[dev]'
	@touch $@ .venv/.installed

# Programs of others for tests/clients, apart from ours: they need a gigabyte.
.venv-clients/.installed: tests/clients/requirements.txt | .venv/.tools
	@echo "Installing the clients that the tests use …"
	@[ -x .venv-clients/bin/python ] || $(BIN)/python -m venv .venv-clients
	@.venv-clients/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	@touch $@
