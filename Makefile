# make reproduce   run the papers' claims and write report/index.html   (ARGS="--quick", ARGS="--only A-F9")
# make test        lint, types, contracts, theory, units and the claims at quick effort   (PYTEST_ARGS="-k svm", PYTEST_ARGS="-n 0 --pdb")
# make test-all    the tests that make test leaves out: pages in a browser, the gallery, the site, packaging, benchmarks, long processes,
#                  and the numerics job; pages are opened in Chromium where it and its driver are found, and MARGINLENS_BROWSER=required
#                  fails where they are not
# make test-random property tests with a thousand new random examples each, which a nightly job runs; a failure prints how to repeat it
#                  (PYTEST_ARGS="tests/norms")
# make test-gpu    tests that need a CUDA device, which the other two leave out; with the packages of the interpreter that PYTHON names
# make test-wheel  build sdist and wheel, install the wheel in fresh environments and test it there   (ARGS="--extras", ARGS="--python python3.12")
# make test-core   the compiled core under the sanitizers of addresses and undefined behaviour
# make lab-core    compile the part of the core that the lab's page computes with into src/marginlens/lab/core.wasm
# make wheels      build sdist and wheel into dist/, with the core for every level of this kind of processor
# make numerics    tests whose numbers can move, under several kinds of arithmetic
# make site        build the site of the documentation into build/site, with the report where make reproduce has written one
#                  (ARGS="-D plot_gallery=0" leaves the examples unrun; make site-links asks whether links to other sites work)
# make docs        write the tables of statements and the page of texts from the code; make pictures draws the pictures of README and docs
# All prepare their own environment in .venv first; PYTHON names the interpreter to make it with.

# Tests and claims start many processes, and each would compile every module again where bytecode is not kept.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup reproduce test quick-tests test-all test-random test-core test-gpu test-wheel lab-core wheels numerics lint docs pictures site site-links clean
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
# A file for each set of packages that is installed: those of the extra `dev`, or of `report` alone where nothing but the report was made yet.
READY := $(VENV)/.ready-dev
REPORT_READY := $(or $(wildcard $(READY)),$(VENV)/.ready-report)
TORCH := torch==2.13.0
ZIGLANG := ziglang==0.17.0
# Without --no-compile, pip spends more than a minute on the bytecode of modules that are never imported.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
NO_COMPILER := marginlens needs a C++ compiler to build its core: install g++ or clang++ with your system's packages, or ziglang with pip.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
CANDIDATES := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python)
AXE := build/browser/node_modules/axe-core/axe.min.js
PYTEST := -m pytest -n auto --maxprocesses 4 --dist loadfile
PYTEST_ARGS ?=
CONTRACT := tests/core tests/contract/test_svm_solvers.py tests/contract/test_norm_solvers.py tests/dynamics
ARGS ?=

help:
	@sed -n '/^$$/q; s/^# //p' Makefile

setup: $(READY)

$(VENV)/.ready-%: pyproject.toml
	@found=; for candidate in $(CANDIDATES); do \
	  if "$$candidate" -c '$(NEW_ENOUGH)' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "marginlens needs Python 3.11 or newer; none of these is: $(CANDIDATES). Name one with make PYTHON=/path/to/python3." >&2; \
	  exit 1; \
	fi; \
	echo "Preparing $(VENV) with $$found; the first time this takes a few minutes."; \
	$(BIN)/python -c '$(NEW_ENOUGH)' 2>/dev/null || "$$found" -m venv --clear $(VENV)
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || [ -n "$$CXX" ] || $(PIP) ziglang || \
	  { echo "$(NO_COMPILER)" >&2; exit 1; }
	@$(BIN)/python src/marginlens/core/build.py native >/dev/null 2>&1 & \
	$(PIP) '$(TORCH)' --editable '.[$*]' && wait
	@touch $@

reproduce: $(REPORT_READY)
	@$(BIN)/marginlens reproduce $(ARGS)

$(AXE):
	@if command -v npm >/dev/null; then \
	  npm install --silent --no-save --prefix build/browser axe-core@4 || echo "npm could not install axe-core, so accessibility is not checked."; \
	fi

test: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 lint quick-tests

quick-tests: $(READY)
	@$(BIN)/python $(PYTEST) -m "not slow and not gpu" $(PYTEST_ARGS)

test-all: $(READY) $(AXE)
	@$(BIN)/python $(PYTEST) -m "slow and not gpu" $(PYTEST_ARGS)
	@$(BIN)/python tests/numerics/run.py

test-random: $(READY)
	@$(BIN)/python $(PYTEST) -m "hypothesis and not gpu" --hypothesis-profile=random $(PYTEST_ARGS)

# Packages such as matplotlib throw C++ exceptions, which the sanitizer catches only where the C++ library is loaded with it.
test-core: $(READY)
	@preloaded="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libstdc++.so)"; \
	MARGINLENS_SANITIZE=1 MARGINLENS_FUZZED_CALLS=3000 LD_PRELOAD="$$preloaded" ASAN_OPTIONS=detect_leaks=0 \
	  $(BIN)/python -m pytest -q -n 0 $(CONTRACT)

test-gpu:
	@PYTHONPATH=src $(or $(PYTHON),python3) -m pytest -p no:cacheprovider -m gpu tests/gpu

lab-core: $(READY)
	@$(BIN)/python -c 'import ziglang' 2>/dev/null || $(PIP) '$(ZIGLANG)'
	@$(BIN)/python -m marginlens.core.wasm

wheels: $(READY)
	@$(BIN)/python -m build --outdir dist .

test-wheel: $(READY)
	@$(BIN)/python tests/packaging/run.py $(ARGS)

numerics: $(READY)
	@$(BIN)/python tests/numerics/run.py

lint: $(READY)
	@$(BIN)/ruff check src benchmarks experiments tests examples docs
	@$(BIN)/ruff format --quiet --check src benchmarks experiments tests examples docs/conf.py docs/extensions
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo

docs: $(READY)
	@$(BIN)/python -m marginlens_papers.documentation

pictures: $(READY)
	@$(BIN)/python -m marginlens_papers.documentation pictures

site: $(READY)
	@$(BIN)/python -m sphinx -W --keep-going -j 2 -d build/doctrees $(ARGS) docs build/site
	@echo "Open build/site/index.html"

site-links: $(READY)
	@$(BIN)/python -m sphinx -b linkcheck -d build/doctrees -D plot_gallery=0 docs build/site-links

clean:
	rm -rf $(VENV) report build dist docs/api docs/gallery docs/sg_execution_times.rst src/marginlens/core/built src/*.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src benchmarks experiments tests -name __pycache__ -prune -exec rm -rf {} +
