# The newcomer's entry; the build itself is CMake (CMakePresets.json). `make help` lists the targets.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help deps build demo test test-peers check bench install format clean

BUILD  := build/release
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
# BASE=REVISION: check looks for tidy findings only in what changed since that revision.
BASE   ?=
# PCH=: without precompiled headers, which ccache cannot share between folders.
PCH    ?= -DRESHARD_PCH=ON
# WERROR=1: compiler warnings fail the build.
WERROR ?=

# $(call build_release,OPTIONS): configures with OPTIONS and builds.
define build_release
	@cmake --preset release -DCMAKE_COMPILE_WARNING_AS_ERROR=$(if $(WERROR),ON,OFF) $(1) >$(BUILD).log 2>&1 \
	  || { cat $(BUILD).log; echo "configuring failed; is everything installed? make deps" >&2; exit 1; }
	@cmake --build $(BUILD) -j $(JOBS)
endef

# $(call run_ctest,OPTIONS): runs tests; at the end says what could not be tested for want of a peer.
define run_ctest
	@rm -f $(BUILD)/tests/peers/*.skipped
	@status=0; ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure --no-tests=error \
	  --timeout 300 --no-label-summary $(1) || status=$$?; \
	  cat $(BUILD)/tests/peers/*.skipped >&2 2>/dev/null; exit $$status
endef

help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

deps: ## Installs the missing Debian packages of every target
	@tools/install_deps.sh build test check bench

# Without tests on the first run, so that the demo needs no test packages; later as it was.
build: | build-dir ## Builds the library, the command line and the examples (Release)
	@tools/install_deps.sh build
	$(call build_release,$(if $(wildcard $(BUILD)/CMakeCache.txt),,-DRESHARD_BUILD_TESTS=OFF))

demo: build ## Trains a small model on 4 ranks, resumes it on 2 and on 3 ranks
	@bash examples/demo.sh $(BUILD)

test: | build-dir ## Builds and runs every test
	@tools/install_deps.sh build test
	$(call build_release,-DRESHARD_BUILD_TESTS=ON $(PCH))
	$(call run_ctest,)

test-peers: | build-dir ## Tests against every real release of other frameworks (downloads 10 GB once)
	@tools/install_deps.sh build test
	$(call build_release,-DRESHARD_BUILD_TESTS=ON)
	$(call run_ctest,-C Peers -L peers)

check: | build-dir ## Sanitizers, fuzz corpus, format, tidy, headers, bench smoke (BASE=REVISION)
	@tools/install_deps.sh build test check bench
	@JOBS=$(JOBS) BASE=$(BASE) tools/check.sh

bench: | build-dir ## Builds and runs the benchmarks
	@tools/install_deps.sh build bench
	$(call build_release,-DRESHARD_BUILD_BENCH=ON $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DRESHARD_BUILD_TESTS=OFF))
	@bash bench/run.sh $(BUILD)

install: build ## Installs below PREFIX=DIR (/usr/local); DESTDIR is honoured
	@cmake --install $(BUILD) --prefix $(abspath $(PREFIX))

format: ## Formats all sources with clang-format 14
	@tools/install_deps.sh check
	@tools/format.sh

clean: ## Removes the build folders
	rm -rf build

.PHONY: build-dir
build-dir:
	@mkdir -p build
