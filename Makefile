PYTHON ?= python3
BIN := .venv/bin

.PHONY: install forda test lint bench docs figures clean

install: .venv/.installed

# The stamp is newer than what it was made from, so a second call costs nothing.
.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

forda: install
	$(BIN)/lagformer forda --data raw,dithered

test: install
	$(BIN)/python -m pytest -n 2 --dist loadgroup tests

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: install
	$(BIN)/lagformer bench attention

# Every page is run. -E: a page whose text is unchanged may still print something else.
docs: install
	$(BIN)/python -m sphinx -q -E -W -n --keep-going -j 2 docs docs/_build/html

figures: install
	$(BIN)/lagformer figures docs/figures

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/_build
