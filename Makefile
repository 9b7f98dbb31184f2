# torch_tpu: `make demo` trains a network on device "tpu", `make test` runs all tests. Each works from a fresh clone.
#
#   make setup   the shared first half: .venv with torch, the CPU plugin and this package, built from here
#   make demo    setup, then examples/digits.py            (DEMO_ARGS="--epochs 2" ...)
#   make test    setup, then the C tests and pytest        (PYTEST_ARGS="tests/ops -k add" ...)
#   make test-all  the same with all of torch's operator database, in all layouts and dtypes (an hour)
#   make test-tpu-compile   lets libtpu, which needs no TPU for that, compile every lowered operator's programs; writes
#                docs/tpu_verdicts.json and docs/operators.md (about half an hour on two cores, later runs less)
#   make lint    clang-format, clang-tidy, ruff, mypy and the include order
#   make asan    the C tests under AddressSanitizer and UBSan;  make tsan: under ThreadSanitizer
#
# TPU_COMPILE_ARGS  more arguments of `python -m torch_tpu tpu-compile`, e.g. "--ops ^linalg"
# PYTHON        the interpreter that makes .venv (3.11 or newer)
# TORCH_INDEX   index URL for torch, for machines whose pip would bring the CUDA build; a torch already in .venv is kept

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
TORCH_INDEX ?=
DEMO_ARGS ?=
PYTEST_ARGS ?=
TPU_COMPILE_ARGS ?=
SOURCES := $(wildcard core/*/*.[ch] core/op/*.def core/Makefile bridge/* torch_tpu/*.py torch_tpu/*/*.py torch_tpu/*/*/*.py) \
  _torch_tpu_autoload.py pyproject.toml setup.py build_tools/backend.py README.md
INSTALLED := $(VENV)/torch_tpu.installed

.PHONY: setup demo test test-all test-c test-tpu-compile lint asan tsan clean
setup: $(INSTALLED)

$(PY):
	$(PYTHON) -m venv $(VENV)

# torch first, alone: no other package's requirement may choose another build.
$(VENV)/torch.installed: | $(PY)
	@$(PY) -c 'import torch' 2>/dev/null || { echo "installing torch 2.13.0 into $(VENV)"; \
	  $(PIP) install torch==2.13.0 $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)); }
	@touch $@

$(INSTALLED): $(VENV)/torch.installed $(SOURCES)
	@echo "building and installing torch_tpu into $(VENV)"
	@$(PIP) install '.[examples,test]'
	@touch $@

demo: setup
	@$(PY) examples/digits.py $(DEMO_ARGS)

# The C tests run on every CPU plugin that is installed.
PLUGIN_FILES := fastatomstruct_xla_cpu/libpjrt_cpu.so lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so
PLUGIN_PATHS = $(shell printf "%s\n" $(wildcard $(addprefix $(VENV)/lib/python3*/site-packages/,$(PLUGIN_FILES))) | xargs realpath | paste -sd:)
PJRT_INC = $(shell realpath $(VENV)/lib/python3*/site-packages/xla_plugins/xla_cpu_pjrt/include)

test: test-c
	@$(PY) -m pytest $(PYTEST_ARGS)

test-all: export TORCH_TPU_TEST_ALL = 1
test-all: test

test-c: setup
	@$(MAKE) --no-print-directory -C core test PJRT_INC=$(PJRT_INC) TT_TEST_PLUGINS=$(PLUGIN_PATHS)

# From this folder, so that docs/ is this clone's.
test-tpu-compile: setup
	@$(PY) -c 'import libtpu' 2>/dev/null || { echo "installing libtpu into $(VENV) (some 200 MB)"; $(PIP) install libtpu; }
	@$(PY) -m torch_tpu tpu-compile --verdicts docs/tpu_verdicts.json $(TPU_COMPILE_ARGS); status=$$?; \
	  $(PY) -m torch_tpu ops --markdown > docs/operators.md && exit $$status

asan tsan: setup
	@$(MAKE) --no-print-directory -C core $@ PJRT_INC=$(PJRT_INC) TT_TEST_PLUGINS=$(PLUGIN_PATHS)

lint: setup
	@$(PIP) install '.[lint]'
	@$(PY) build_tools/lint.py

clean:
	rm -rf build $(VENV)
