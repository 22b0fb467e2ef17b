# The everyday commands, over CMake. On a Debian machine each installs what it needs (scripts/setup.sh).
#
#   make run        build, then the demonstration: a small net, and real activations against torch's output
#   make test       build and run every test
#   make python     build the Python package, check its types, run its tests and those of ONNX, Keras and PyTorch
#   make bench      the speed comparison with other systems, docs/performance-results.md (QUICK=1: a few cells)
#   make claims     train small Llamas with and without norms, and write docs/claims.md: 10 to 15 minutes on 2 cores
#                   (QUICK=1: half a minute, into build/claims)
#   make tsan       the thread tests under ThreadSanitizer
#   make sanitize   the same tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   make fuzz       libFuzzer on the .npy reader and the argument checks, FUZZ_SECONDS each (60)
#   make coverage   which lines of the library and the program the tests run
#   make lint       format, static checks, layers, exported symbols
#   make format     apply clang-format and ruff
#   make corpus     add what `make fuzz` found to tests/corpus
#   make install    into PREFIX (/usr/local)
#   make clean

BUILD := build
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_ARGS ?=
QUICK ?=

WERROR := $(if $(CI),ON,OFF)
CTEST := ctest --output-on-failure --no-tests=error --parallel $(JOBS)
# Debian's own Python, so that the version does not depend on what else a machine has.
PYTHON ?= $(shell test -x /usr/bin/python3 && echo /usr/bin/python3 || echo python3)
VENV := $(BUILD)/venv
C_FILES = $(shell find include src cli tests examples bench python/src -name '*.[ch]' -o -name '*.[ch]pp' | sort)
PYTHON_DIRS = tools tests scripts python examples bench

# $(call build,FOLDER,OPTIONS): configure and build, silent but for warnings and errors.
define build
	@mkdir -p $(1)
	@cmake -S . -B $(1) -G Ninja -DTN_WERROR=$(WERROR) $(2) $(CMAKE_ARGS) >$(1)/configure.log 2>&1 || \
	    { cat $(1)/configure.log; exit 1; }
	@echo "building in $(1)"
	@cmake --build $(1) --parallel $(JOBS) -- --quiet
endef

.PHONY: run test python bench claims tsan sanitize fuzz corpus coverage lint format install clean

run:
	@scripts/setup.sh run
	$(call build,$(BUILD),-DTN_BUILD_TESTS=OFF)
	@scripts/run.sh $(BUILD)

test:
	@scripts/setup.sh test
	$(MAKE_VENV)
	$(call build,$(BUILD),-DTN_BUILD_TESTS=ON -DTN_PYTHON=$(CURDIR)/$(VENV)/bin/python)
	@$(CTEST) --test-dir $(BUILD)

python:
	@scripts/python.sh

bench:
	@scripts/bench.sh

claims:
	@scripts/setup.sh claims
	$(call build,$(BUILD),-DTN_BUILD_TESTS=OFF)
	@scripts/claims.sh $(BUILD) $(if $(QUICK),$(BUILD)/claims --quick,docs)

tsan:
	@scripts/setup.sh test
	@scripts/tsan.sh

sanitize:
	@scripts/setup.sh test
	$(MAKE_VENV)
	$(call build,$(BUILD)/sanitize,-DTN_SANITIZE=address$(COMMA)undefined -DCMAKE_BUILD_TYPE=Debug \
	    "-DCMAKE_C_FLAGS_DEBUG=-O1 -g" -DTN_BUILD_TESTS=ON -DTN_PYTHON=$(CURDIR)/$(VENV)/bin/python)
	@UBSAN_OPTIONS=print_stacktrace=1 $(CTEST) --test-dir $(BUILD)/sanitize

fuzz:
	@scripts/setup.sh clang
	@scripts/fuzz.sh $(BUILD)/fuzz $(FUZZ_SECONDS)

corpus:
	@scripts/setup.sh clang
	@scripts/fuzz.sh $(BUILD)/fuzz merge

coverage:
	@scripts/setup.sh coverage
	$(MAKE_VENV)
	$(call build,$(BUILD)/coverage,-DTN_COVERAGE=ON -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_C_FLAGS_DEBUG=-O1 -g" \
	    -DTN_BUILD_TESTS=ON -DTN_PYTHON=$(CURDIR)/$(VENV)/bin/python)
	@find $(BUILD)/coverage -name '*.gcda' -delete
	@GCOV_ERROR_FILE=/dev/null $(CTEST) --test-dir $(BUILD)/coverage
	@gcovr --root . --object-directory $(BUILD)/coverage --filter src/ --filter cli/ --exclude-unreachable-branches \
	    --txt $(BUILD)/coverage/coverage.txt --print-summary
	@cut -c1-75 $(BUILD)/coverage/coverage.txt

lint:
	@scripts/setup.sh lint
	$(MAKE_VENV)
	@$(VENV)/bin/pip install -qq -r tools/requirements.txt
	@clang-format --dry-run -Werror --ferror-limit=1 $(C_FILES)
	tools/check_layers.py
	cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,performance,portability --inline-suppr \
	    --suppressions-list=tools/cppcheck.txt -D_GNU_SOURCE -D__x86_64__ -D__GNUC__=12 -Iinclude -Isrc -j $(JOBS) \
	    src cli examples bench
	$(call build,$(BUILD),-DTN_BUILD_TESTS=OFF)
	tools/check_symbols.sh $(BUILD)
	$(VENV)/bin/ruff check $(PYTHON_DIRS)
	$(VENV)/bin/ruff format --check $(PYTHON_DIRS)

format:
	@scripts/setup.sh lint
	$(MAKE_VENV)
	@$(VENV)/bin/pip install -qq -r tools/requirements.txt
	clang-format -i $(C_FILES)
	$(VENV)/bin/ruff format $(PYTHON_DIRS)

install:
	$(call build,$(BUILD),-DTN_BUILD_TESTS=OFF -DCMAKE_INSTALL_PREFIX=$(PREFIX))
	@cmake --install $(BUILD)

clean:
	rm -rf $(BUILD)

COMMA := ,
define MAKE_VENV
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	@cmp -s tests/requirements.txt $(VENV)/requirements.txt || { $(VENV)/bin/pip install -qq -r tests/requirements.txt && \
	    cp tests/requirements.txt $(VENV)/requirements.txt; }
endef
