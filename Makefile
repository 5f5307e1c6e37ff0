# make demo:     set up what the demo needs, then search, train the winner and query it, on the bundled graph.
# make test:     set up, then everything that CI runs: format, lint, types and all tests.
# make check:    the same without the slow tests, in about two minutes.
# make coverage: all tests again, with the lines that none of them ran.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/runs-grash
READY := $(VENV)/ready
# One thread per worker: two workers with two threads each wait for each other. Bytecode is kept for the processes that
# tests start, also where the environment is set to keep none.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal

.PHONY: demo test check coverage lint style setup browser docs clean

setup: $(READY)

# torch first and pinned, so that nothing below resolves another build of it. With CUDA, it brings its own triton.
$(RUNS): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	sed '/^triton/d' constraints.txt >$(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(VENV)/constraints.txt --editable .
	touch $(RUNS)

$(READY): $(RUNS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: $(RUNS)
	$(BIN)/python examples/demo.py

style: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

lint: style
	$(BIN)/mypy

# The test of the report opens it in Chromium; it is skipped where there is none and none can be installed.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	&& apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	|| echo 'There is no Chromium: the test of the report in a browser will be skipped.'
	@test -d $(VENV)/axe || { command -v npm >/dev/null && npm install --silent --prefix $(VENV)/axe axe-core@4.14.0 >/dev/null; } \
	|| echo 'There is no npm: the accessibility of the report will not be tested.'

# mypy is one of the tests (tests/test_typing.py), so no core waits for it.
test: style browser
	$(PYTEST)

check: lint
	$(PYTEST) -m 'not slow and not gpu'

coverage: $(READY)
	$(PYTEST) --cov=grash --cov=grash_study --cov-report=term:skip-covered

# The site of the documentation, in build/site.
docs: $(READY)
	$(BIN)/python tools/make_site.py

clean:
	rm -rf $(VENV) runs build dist
