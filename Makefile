# Every task is in tasks.py, which does the same without make: python tasks.py test. `make help` lists them.
#
# ARGS and PYTEST_ARGS go to the command of a task: make reproduce ARGS="--only A-F9", make test PYTEST_ARGS="-k svm".
# PYTHON names the interpreter to make .venv with.

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
CANDIDATES := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python)
SHELL := /bin/sh

.DEFAULT_GOAL := help
.PHONY: help setup reproduce test quick-tests test-all test-random test-without-posix test-core test-gpu test-wheel lab-core wheels numerics lint docs pictures site site-links clean

help setup reproduce test quick-tests test-all test-random test-without-posix test-core test-gpu test-wheel lab-core wheels numerics lint docs pictures site site-links clean:
	@for candidate in $(CANDIDATES); do \
	  if "$$candidate" -c '$(NEW_ENOUGH)' 2>/dev/null; then exec "$$candidate" tasks.py $@ $(ARGS) $(PYTEST_ARGS); fi; \
	done; \
	echo "marginlens needs Python 3.11 or newer; none of these is: $(CANDIDATES). Name one with make PYTHON=/path/to/python3." >&2; \
	exit 1
