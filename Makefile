# Everything here works on a fresh machine with Python 3.11+, a C++ compiler, make and a package index.
PYTHON ?= python3
EXTRA ?= $(if $(filter Linux,$(shell uname -s)),cpu,none)
BIN := .venv/bin
SOURCES := pyproject.toml requirements.lock CMakeLists.txt $(wildcard native/*)

.DEFAULT_GOAL := help
.PHONY: help setup demo serve chat bench test lint types layers sanitize fuzz check lock clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: .venv/stamp ## make .venv with Ingle, its dependencies and the native module

.venv/stamp: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(if $(filter cuda,$(EXTRA)),$(BIN)/python -m pip uninstall -q -y mlx-cpu && $(BIN)/python -m pip install -q 'mlx[cuda13]>=0.32.4$(comma)<0.33')
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

comma := ,

demo: setup ## fetch the default model, serve it, ask it something
	$(BIN)/python examples/demo.py

serve: setup ## serve the default model on port 8400
	$(BIN)/ingle serve

chat: setup ## talk to the default model
	$(BIN)/ingle chat

bench: setup ## measure the default model
	$(BIN)/ingle bench

test: setup ## run the test suite
	$(BIN)/python -m pytest

lint: setup ## ruff
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: setup ## pyright, strict for src
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

layers: setup ## import-linter
	$(BIN)/lint-imports

sanitize: setup ## the kernel tests with the address and undefined-behaviour sanitizers
	$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DCMAKE_BUILD_TYPE=Release \
	  -DINGLE_SANITIZE=ON -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python >/dev/null
	$(BIN)/cmake --build build/sanitize
	INGLE_TEST_EXTENSION=$$(echo build/sanitize/_cpu*.so) ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$($${CXX:-g++} -print-file-name=libasan.so) $$($${CXX:-g++} -print-file-name=libubsan.so)" \
	  $(BIN)/python -m pytest tests/kernels/test_native.py tests/contract/test_equality.py tests/contract/test_row_invariance.py \
	  tests/parity/test_assistant.py -m "not model" -k "not decides and not fault" --deselect tests/kernels/test_native.py::test_offsets_past_four_gibibytes

fuzz: setup ## 20,000 bodies for each dialect
	INGLE_FUZZ=20000 $(BIN)/python -m pytest -q tests/server/test_fuzz.py

check: lint types layers test ## all of these

lock: ## renew requirements.lock
	$(BIN)/python -m pip install --quiet uv
	printf 'scikit-build-core>=1,<2\nnanobind>=3.1,<4\ncmake>=3.24\nninja\n' > build-requirements.tmp
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --python-version 3.11 --extra cpu --extra heic --extra otel --extra dev pyproject.toml build-requirements.tmp -o requirements.lock
	rm build-requirements.tmp

clean: ## remove what setup and tests made
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis
