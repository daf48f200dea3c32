# SPDX-License-Identifier: Apache-2.0
# The two commands (demo, test) and shorthands for the presets of CMakePresets.json.

PREFIX ?= /usr/local

# Debian's tools first: those are the versions that the project is tested with.
export PATH := /usr/bin:/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

.NOTPARALLEL:
.PHONY: help demo test setup configure build lint sanitize fuzz mutants bench experiments install clean

help:
	@echo "make demo      install what is missing, build, show worked problems, a real-size layer and training"
	@echo "make test      install what is missing, build, check the sources, run sanitizers and every test"
	@echo "make setup     install the Debian packages of scripts/packages.txt that are missing"
	@echo "make build     build everything in build/"
	@echo "make lint      formatting, clang-tidy, direction of includes"
	@echo "make sanitize  the whole suite under the address, undefined-behaviour and thread sanitizers"
	@echo "make fuzz      a minute of libFuzzer on every parser of files"
	@echo "make mutants   flip each sign of the backward pass: the tests must notice"
	@echo "make bench     measure this machine: build/headgate bench"
	@echo "make experiments  run what is not recorded yet in experiments/: hours, and can be interrupted"
	@echo "make install   install below PREFIX=$(PREFIX)"
	@echo "make clean     remove build*/"

demo: configure
	@echo "== headgate: building the command line"
	@cmake --build --preset release --target headgate_tool
	@echo "== headgate: demo"
	@text=$$(scripts/english_text.sh) || \
	  { echo "make demo: no English text to train on; with one of yours: build/headgate demo --data FILE" >&2; exit 1; }; \
	  build/headgate demo --data "$$text"

test: setup
	@scripts/test.sh

setup:
	@echo "== headgate: Debian packages"
	@scripts/setup.sh

configure: setup
	@echo "== headgate: configuring build/"
	@scripts/configure.sh release

build: configure
	@echo "== headgate: building everything in build/"
	@cmake --build --preset release

lint: configure
	@scripts/lint.sh

sanitize: setup
	@scripts/sanitize.sh full

fuzz: setup
	@scripts/sanitize.sh full fuzz

mutants: setup
	@python3 scripts/mutation_check.py

bench: configure
	@cmake --build --preset release --target headgate_tool
	@build/headgate bench

experiments: configure
	@cmake --build --preset release --target headgate_tool
	@for name in backcopy text stability; do experiments/run.py $$name || exit; done

install: build
	@cmake --install build --prefix "$(PREFIX)"

clean:
	rm -rf build build-debug build-asan build-tsan build-fuzz
