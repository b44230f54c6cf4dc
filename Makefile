# make serve      install, pull the default model, serve it on 127.0.0.1:8000
# make test       everything a change must pass (10 minutes at most); make test-full: what takes longer
# make lint       the checks without the tests; make format mends what can be mended
# make sanitize  the kernels' tests on builds that watch memory and races (a quarter of an hour)
# make soak       everything at once on the real model for ten minutes (SECONDS=60 for one): nothing may grow
# make build      compile the kernels again after a change (seconds)
# make lock       choose the newest packages that pyproject.toml allows, and write their hashes into locks/
# make audit      ask the vulnerability service about every package in locks/ (needs a network)
# make clean      remove .venv, .venv-clients, .venv-tools and everything built
#
# What is installed is what locks/ names, by hash; with LOCKED=0 the newest that pyproject.toml allows.
#
# Paths are relative on purpose: the folder may have spaces in its name, and so may the model.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help serve test test-full soak sanitize lint format build lock audit clean
SHELL := /bin/sh
MAKEFLAGS += --no-print-directory

MODEL ?= smollm2
HOST ?= 127.0.0.1
PORT ?= 8000
ARGS ?=
SECONDS ?= 600
LOCKED ?= 1

# The first Python that is 3.11 or newer and can make environments.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
KERNELS := CMakeLists.txt $(wildcard kernels/*)

# Which packages: $(call packages,NAME,OTHERWISE) is locks/NAME.txt, or what is allowed without a lock. A list is whole,
# so nothing is resolved again: pip before 23.3 looks for the newest of a package that another wants with an extra,
# whatever the list pins, and fails on the day that there is a newer one.
locked := $(filter-out 0 no false off,$(LOCKED))
packages = $(if $(locked),--no-deps --require-hashes -r locks/$(1).txt,$(2))
# Octavo itself from this folder, with the packages of locks/NAME.txt or of pyproject.toml's [NAME].
octavo = $(if $(locked),$(PIP) install $(call packages,$(1)) && \
	$(PIP) install --no-build-isolation --no-deps --editable .,$(PIP) install --no-build-isolation --editable '.$(2)')
COMPILE = .venv-tools/bin/uv pip compile --quiet --no-config --no-python-downloads --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --custom-compile-command 'make lock'
EXTRAS := hub yaml reference route
build_requires = $(1) -c 'import tomllib; \
	print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")'
AUDIT ?=

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

soak: .venv/.installed-dev
	$(BIN)/python -m tests.faults.soak --seconds $(SECONDS)

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
	rm -rf .venv .venv-clients .venv-tools build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment has the build tools in it, so that a change compiles one file and not everything again.
.venv/.tools: pyproject.toml locks/build.txt
	@[ -n "$(PYTHON)" ] || { echo "error: no Python 3.11 or newer with venv was found; install python3 and python3-venv," \
		"or give one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Preparing .venv with $(PYTHON) …"
	@[ -x $(BIN)/python ] || $(call quoted,$(PYTHON)) -m venv .venv
	@$(call build_requires,$(BIN)/python) > .venv/build-requires.txt
	@$(PIP) install $(call packages,build,-r .venv/build-requires.txt)
	@command -v cmake >/dev/null || $(PIP) install $(call packages,cmake,-r locks/cmake.in)
	@touch $@

.venv/.installed: .venv/.tools locks/base.txt $(KERNELS)
	@echo "Installing Octavo and compiling its kernels (a minute or two the first time) …"
	@$(call octavo,base,)
	@$(BIN)/python -c 'import octavo._kernels' 2>/dev/null || { \
		echo "note: no C++ compiler or no Python headers, so the kernels were not built and the slow NumPy backend will serve;" \
			"install g++ and python3-dev, then run: make clean serve" >&2; \
		$(call octavo,extras,[reference]); }
	@touch $@

.venv/.installed-dev: .venv/.tools locks/dev.txt $(KERNELS)
	@echo "Installing Octavo with the test tools and compiling its kernels …"
	@$(call octavo,dev,[dev])
	@touch $@ .venv/.installed

# Programs of others for tests/clients, apart from ours: they need a gigabyte.
.venv-clients/.installed: tests/clients/requirements.txt locks/clients.txt | .venv/.tools
	@echo "Installing the clients that the tests use …"
	@[ -x .venv-clients/bin/python ] || $(BIN)/python -m venv .venv-clients
	@.venv-clients/bin/python -m pip --disable-pip-version-check --quiet install $(call packages,clients,-r $<)
	@touch $@

# The newest of everything, then each smaller list with the same versions: a list that is there is kept to.
lock: .venv-tools/.installed
	@$(call build_requires,$(BIN)/python) > .venv-tools/build.in
	$(COMPILE) --upgrade --all-extras pyproject.toml .venv-tools/build.in locks/cmake.in -o locks/dev.txt
	@for name in base extras build cmake; do cp locks/dev.txt locks/$$name.txt; done
	$(COMPILE) pyproject.toml -o locks/base.txt
	$(COMPILE) $(addprefix --extra ,$(EXTRAS)) pyproject.toml -o locks/extras.txt
	$(COMPILE) .venv-tools/build.in -o locks/build.txt
	$(COMPILE) locks/cmake.in -o locks/cmake.txt
	$(COMPILE) --upgrade tests/clients/requirements.txt -o locks/clients.txt
	$(COMPILE) --upgrade locks/tools.in -o locks/tools.txt

audit: .venv-tools/.installed
	@rm -f .venv-tools/audit.txt
	@.venv-tools/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off --vulnerability-service osv \
		--output .venv-tools/audit.txt $(AUDIT) $(addprefix -r ,$(wildcard locks/*.txt)) 2> .venv-tools/audit.log || { \
		if [ -s .venv-tools/audit.txt ]; then cat .venv-tools/audit.txt >&2; \
			echo "error: packages in locks/ have known vulnerabilities; see whether make lock mends them." >&2; \
		else tail -n 1 .venv-tools/audit.log >&2; \
			echo "error: the vulnerability service did not answer for every package, so nothing is known of them; run" \
				"make audit where it can be reached, or choose another: make audit" \
				"AUDIT='--vulnerability-service pypi'. All that was said is in .venv-tools/audit.log." >&2; fi; exit 1; }
	@echo "No known vulnerability in the packages of locks/."

# uv and pip-audit, apart from what they judge.
.venv-tools/.installed: locks/tools.in locks/tools.txt | .venv/.tools
	@echo "Installing uv and pip-audit …"
	@[ -x .venv-tools/bin/python ] || $(BIN)/python -m venv .venv-tools
	@.venv-tools/bin/python -m pip --disable-pip-version-check --quiet install $(call packages,tools,-r $<) \
		|| { rm -rf .venv-tools; exit 1; }
	@touch $@
