# Everything a newcomer needs: `make demo`, `make test`. Each target builds its own environment first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
DOCS   := $(VENV)/.docs-installed

.PHONY: demo test test-all test-portable lint docs bench reliability environments study dist clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,files]'
	touch $(READY)

demo: $(READY)
	$(BIN)/corten demo --output demo-output --overwrite

# Two processes share the files of tests (a file stays in one: its fixtures are made once). TESTERS=4 on a larger machine.
TESTERS ?= 2
test: $(READY)
	$(BIN)/python -m pytest -m 'not slow' -n $(TESTERS) --dist loadfile

test-all: $(READY)
	$(BIN)/python -m pytest -n $(TESTERS) --dist loadfile

# The tests that compare engines, with the arithmetic of two other processors: the oldest 64-bit one, and one with AVX2.
# Kernels are compiled again, into a temporary folder. Minutes.
PORTABLE := $(addprefix tests/, engine/test_engine.py engine/test_engine_jax.py engine/test_engine_dask.py \
	engine/test_residuals.py engine/test_properties_engine.py lowrank/test_lowrank_descent.py \
	lowrank/test_properties_descent.py propensity/test_learned_coupling.py propensity/test_propensity.py \
	propensity/test_properties_propensity.py completion/test_batched.py calibration/test_device_rounds.py \
	large/test_outofcore.py test_determinism.py)
test-portable: $(READY)
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	OPENBLAS_CORETYPE=Prescott XLA_FLAGS=--xla_cpu_max_isa=SSE4_2 NUMBA_CPU_NAME=generic NUMBA_CACHE_DIR=$$folder/generic \
		$(BIN)/python -m pytest -m 'not slow' $(PORTABLE) && \
	OPENBLAS_CORETYPE=Haswell XLA_FLAGS=--xla_cpu_max_isa=AVX2 NUMBA_CPU_NAME=haswell NUMBA_CACHE_DIR=$$folder/haswell \
		$(BIN)/python -m pytest -m 'not slow' $(PORTABLE)

lint: $(READY)
	$(BIN)/ruff check src tests studies benchmarks docs
	$(BIN)/mypy

# Installed once; after that the site builds without a network.
$(DOCS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $(DOCS)

docs: $(DOCS)
	rm -rf site docs/generated
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -d build/doctrees docs site

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
	rm -rf $(VENV) dist build site docs/generated demo-output bench-output study-output reliability-output
