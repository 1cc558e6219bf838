# Every target builds .venv first, with uv where it is installed and with venv and pip elsewhere.
#   make study               train, judge, write the report           (STUDY=name, ARGS="--full")
#   make test                the whole test suite
#   make test-exhaustive     the slow proof: all 2**32 FP32 inputs, a million sums a tensor core
#   make experiments         every experiment in full, some 40 minutes on one core, and docs/
#   make experiments-smoke   every experiment in miniature
#   make lint                format, lint, types, import plan
PYTHON ?= python3
STUDY  ?= converges
ARGS   ?=
BIN    := .venv/bin

.PHONY: study test test-exhaustive experiments experiments-smoke lint bench clean
.DELETE_ON_ERROR:

study: .venv/lab
	$(BIN)/jprec study run $(STUDY) $(ARGS)

test: .venv/dev
	$(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

test-exhaustive: .venv/dev
	$(BIN)/python -m pytest -n auto -m exhaustive tests/exhaustive $(ARGS)

experiments: .venv/lab
	for file in $$(grep -l 'EXPERIMENT = ' experiments/*/run.py); do echo "== $$file"; $(BIN)/python $$file || exit 1; done
	$(BIN)/python docs/generate.py

experiments-smoke: .venv/dev
	$(BIN)/python -m pytest -n auto --dist loadfile tests/experiments $(ARGS)

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/lab
	for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# .venv/lab and .venv/dev mark which extra is installed; pyproject.toml renews both.
.venv/dev: pyproject.toml
	@$(call install,dev)
	@touch .venv/lab .venv/dev

.venv/lab: pyproject.toml
	@$(call install,lab)
	@touch .venv/lab

define install
set -e; \
if command -v uv >/dev/null 2>&1; then \
	test -x $(BIN)/python || uv venv --python $(PYTHON) .venv; \
	uv pip install --python $(BIN)/python -e '.[$(1)]'; \
else \
	$(PYTHON) -c 'import sys; sys.exit("jprec needs Python 3.11 or newer; name one with make PYTHON=...") if sys.version_info < (3, 11) else None'; \
	test -x $(BIN)/python || $(PYTHON) -m venv .venv; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(1)]'; \
fi
endef

clean:
	rm -rf .venv
