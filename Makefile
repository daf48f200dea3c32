# SPDX-License-Identifier: Apache-2.0
# The commands (demo, test, check) and shorthands for the presets of CMakePresets.json. What each installs first are groups
# of scripts/packages.txt.

PREFIX ?= /usr/local
# Of `make test`: 1 tests the library alone, for this CPU. Any other value tests everything.
QUICK ?=
override QUICK := $(filter 1,$(QUICK))
# Of `make check`. A commit: clang-tidy reads what changed since, in place of scripts/check.sh's choice. Seconds: checks
# that have not ended by then are stopped.
SINCE ?=
LIMIT ?=
# Names of scripts/check.sh's checks; all by default.
CHECKS ?=
# Of `make tool`: what CMakeLists.txt says of HEADGATE_VECTOR_TARGETS; by default what is built stays, and a new build has all.
VECTOR_TARGETS ?=
# Options of `make hostile` (tests/hostile/run.py --help) and `make mutants` (scripts/mutation_check.py --help).
ARGS ?=

# Debian's tools first: those are the versions that the project is tested with.
export PATH := /usr/bin:/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
# ccache compares paths relative to the build folder, so that the folder of the wheel shares objects with build/.
export CCACHE_BASEDIR ?= $(CURDIR)

.NOTPARALLEL:
.PHONY: help demo test check setup tool build lint sanitize fuzz hostile mutants verify-long bench experiments docs install deb deb-check wheels clean

help:
	@echo "make demo         install what is missing, build, look into a real model, make a sink and remove it"
	@echo "make test         install what is missing, build everything, run every test; QUICK=1: the library's tests"
	@echo "                  alone, for this CPU, in a few minutes, in build-quick/"
	@echo "make check        a shorter run each of lint, sanitizers (by clang), aarch64, places, Triton, versions and"
	@echo "                  mutants, after make test; CHECKS=\"NAMES\": these alone; SINCE=COMMIT: clang-tidy reads the"
	@echo "                  files that changed since; LIMIT=SECONDS: for all of it"
	@echo "make setup        install every Debian package of scripts/packages.txt that is missing"
	@echo "make tool         build the command line: build/headgate; VECTOR_TARGETS=native: for this CPU"
	@echo "                  alone, in two thirds of the time"
	@echo "make build        build everything in build/"
	@echo "make lint         formatting, clang-tidy of every file, direction of includes, ruff"
	@echo "make sanitize     the whole suite under the address and undefined-behaviour sanitizers, threads under theirs"
	@echo "make fuzz         a minute of libFuzzer on every parser of files"
	@echo "make hostile      damaged files, bad paths, limits and signals against every reader and output: minutes"
	@echo "make mutants      change one sign or operator at a time: the tests must notice; ARGS=\"--sample 50\""
	@echo "make verify-long  10,000 random problems of each operation against the oracle on every vector target"
	@echo "make bench        measure this machine: build/headgate bench"
	@echo "make experiments  run what is not recorded yet of the experiments that need the tool alone: hours, and can be"
	@echo "                  interrupted; experiments/run.py NAME runs the others"
	@echo "make docs         install what is missing, build the site of documents: build/site/index.html"
	@echo "make install      build library and tool alone, for every CPU, and install them below PREFIX=$(PREFIX);"
	@echo "                  after make demo VECTOR_TARGETS=native installs what is built, for this CPU alone"
	@echo "make deb          build Debian packages of library, tool and Python module in build/deb"
	@echo "make deb-check    build them, then install and use them in a bare root: needs root"
	@echo "make wheels       build and try out Python's packages in bare roots of Debian 12 and 13: needs root, half an hour"
	@echo "make clean        remove build*/"

demo:
	@scripts/demo.sh

test: $(if $(QUICK),,build)
ifneq ($(QUICK),)
	@scripts/setup.sh build tests
	@echo "== headgate: building the library and its tests in build-quick/"
	@scripts/configure.sh quick
	@cmake --build --preset quick
endif
	@echo "== headgate: $(if $(QUICK),the library's tests,every test)"
	@ctest --preset $(if $(QUICK),quick,release) --parallel 2

check: setup
	@scripts/check.sh $(if $(SINCE),--since $(SINCE)) $(if $(LIMIT),--seconds $(LIMIT)) $(if $(CHECKS),--only "$(CHECKS)")

setup:
	@scripts/setup.sh build tool tests browser mpi python docs lint clang aarch64 experiments

tool:
	@scripts/setup.sh build tool
	@if [ "$(VECTOR_TARGETS)" = all ] && grep -Eqs '^HEADGATE_VECTOR_TARGETS:[A-Z]+=(native|avx[23])$$' build/CMakeCache.txt; then \
	  echo "== headgate: build/ has the kernels of one kind of CPU; now those of every other one are compiled as well:"; \
	  echo "   six minutes on two free cores, longer beside other programs. VECTOR_TARGETS=native takes what is built,"; \
	  echo "   for this CPU alone."; \
	fi
	@echo "== headgate: building the command line in build/"
	@scripts/configure.sh tool $(if $(VECTOR_TARGETS),-D HEADGATE_VECTOR_TARGETS=$(VECTOR_TARGETS))
	@cmake --build --preset tool

build:
	@scripts/setup.sh build tool tests browser mpi python docs
	@echo "== headgate: building everything in build/"
	@python=$$(scripts/python_venv.sh) && scripts/configure.sh release $$python
	@cmake --build --preset release

lint:
	@scripts/setup.sh build tool tests mpi python lint
	@python=$$(scripts/python_venv.sh) && scripts/configure.sh lint $$python
	@scripts/lint.sh

sanitize:
	@scripts/setup.sh build tool tests clang
	@scripts/sanitize.sh full asan tsan

fuzz:
	@scripts/setup.sh build tool tests clang
	@scripts/sanitize.sh full fuzz

hostile: tool
	@tests/hostile/run.py $(ARGS)

mutants:
	@scripts/setup.sh build tool tests python
	@python=$$(scripts/python_venv.sh build mutants) && $$python scripts/mutation_check.py $(ARGS)

# What is installed is for every CPU; verify-long tries every target of this one.
install verify-long: VECTOR_TARGETS = all

verify-long: tool
	@build/headgate verify --problems 10000

bench: tool
	@build/headgate bench

experiments: tool
	@scripts/setup.sh experiments
	@for name in backcopy text text-sink quantised stability; do experiments/run.py $$name || exit; done

docs:
	@scripts/setup.sh build tool tests python docs
	@echo "== headgate: building the site in build/site"
	@python=$$(scripts/python_venv.sh) && scripts/configure.sh release $$python
	@cmake --build --preset release --target docs

install: tool
	@cmake --install build --prefix "$(PREFIX)"

deb:
	@scripts/deb.sh

deb-check:
	@scripts/deb.sh --check

wheels:
	@scripts/wheels.sh

clean:
	rm -rf build build-*
