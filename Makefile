# make demo: set up, then search, train the winner and query it, on the bundled graph.
# make test: set up, then everything that CI checks; Chromium, for the test of the report, where apt can install it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test lint setup browser clean

setup: $(READY)

# torch first and pinned, so that nothing below resolves another build of it.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/python examples/demo.py

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	&& apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	|| echo 'There is no Chromium: the test of the report in a browser will be skipped.'

test: lint browser
	$(BIN)/python -m pytest

clean:
	rm -rf $(VENV) runs build dist
