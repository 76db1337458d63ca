# Everything a newcomer needs: `make demo`, `make test`. Each target builds its own environment first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
DOCS   := $(VENV)/.docs-installed

.PHONY: demo test lint docs bench reliability environments study dist clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,files]'
	touch $(READY)

demo: $(READY)
	$(BIN)/corten demo --output demo-output --overwrite

test: $(READY)
	$(BIN)/python -m pytest -m 'not slow'

lint: $(READY)
	$(BIN)/ruff check src tests studies benchmarks docs
	$(BIN)/mypy

# Installed once; after that the site builds without a network.
$(DOCS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $(DOCS)

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Hours: long property tests, 100,000 bad files, many faults, a soak; writes docs/reliability.md. Parts: see the script.
reliability: $(READY)
	$(BIN)/python tests/reliability/run.py

# Most of an hour, with a network: the suite with the lowest and the newest versions, wheel and sdist in empty places.
environments: $(READY)
	$(BIN)/python tests/reliability/run.py lowest newest wheel sdist

bench: $(READY)
	$(BIN)/python -m benchmarks speed --output bench-output

study: $(READY)
	$(BIN)/python -m studies simulation --preset smoke --output study-output

dist: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) dist build site demo-output bench-output study-output reliability-output
