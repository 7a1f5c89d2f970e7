# The menu: each target is a line or two that one could type. `make` lists them.

SHELL := /bin/bash
export CARGO_INCREMENTAL := 0

# With the features that tests need (those of dev-dependencies), so that the tests, the demo and the soak share one build.
BUILD := cargo build --workspace --bins --examples
PROGRAMS_DIR = $${CARGO_TARGET_DIR:-target}/debug

BUF := npx --yes @bufbuild/buf@1.75.0
# Every shell script of the project: by its first line, and the libraries by their name.
SCRIPTS = $(shell git ls-files -co --exclude-standard | grep -vE '\.(md|rs|json|txt)$$' | while read -r f; do \
	if [[ $$f == *.sh ]] || head -c 64 "$$f" 2>/dev/null | head -n 1 | grep -qaE '^\#!.*[/ ](ba)?sh$$'; then echo "$$f"; fi; done)

.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-slurm deploy-check deploy-test upgrade packages soak lint bench bench-large fuzz fmt codegen docs clean-run

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

setup: ## install what building, testing and linting need (Debian; root or sudo)
	scripts/setup lint

build: ## build everything (dev profile)
	$(BUILD)

demo: ## a real Slurm cluster, the mesh, and a day of jobs, in a few minutes (DEMO_STAY=1 keeps it up)
	scripts/setup demo
	@nats=$$(scripts/nats-server) && export NATS_SERVER_BIN=$$nats && \
	start=$$(date +%s) && $(BUILD) && built=$$(date +%s) && \
	echo "built in $$((built - start)) s" && \
	{ "$(PROGRAMS_DIR)/demo"; status=$$?; } ; \
	if [[ -n $$built ]]; then echo "built in $$((built - start)) s, ran for $$(($$(date +%s) - built)) s"; fi; exit $${status:-1}

test: ## every test, on a real nats-server and real Slurm clusters, two programs at a time
	scripts/setup
	nats=$$(scripts/nats-server) && schemathesis=$$(scripts/schemathesis) && \
	NATS_SERVER_BIN=$$nats SCHEMATHESIS=$$schemathesis cargo xtask test

test-slurm: ## the tests that use a live Slurm, on another version: ROOT=DIR (scripts/slurm-root makes one); noted in docs/internals/compat.md
	scripts/setup
	nats=$$(scripts/nats-server) && NATS_SERVER_BIN=$$nats ROOT=$(ROOT) cargo xtask compat --run

lint: ## formatting, clippy, shell, protobuf, generated files, links, names, dependencies, licenses
	scripts/setup lint
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	shellcheck $(SCRIPTS)
	cargo xtask codegen --check
	cargo xtask docs --check
	cargo xtask lint
	cargo xtask compat --check
	promtool check rules deploy/compose/observability/*.yml
	promtool test rules deploy/check/rules/*.yml
	cd proto && $(BUF) lint
	@if command -v cargo-deny >/dev/null; then cargo deny check licenses bans sources; \
	else echo "cargo-deny is not installed: licenses, bans and sources were not checked"; fi

deploy-check: ## the Helm chart, the Dockerfile, compose.yaml, units and packages, checked without an engine or a cluster
	deploy/check/run

deploy-test: ## Compose on a Docker engine, packages under a systemd, each beside a real Slurm (root; PHASES='sqlite postgres', PROGRAMS=DIR)
	scripts/setup
	$(BUILD)
	deploy/test/run $(PHASES)
	packaging/test/run

upgrade: ## services of REF are replaced by these while jobs run, and back, on SQLite and PostgreSQL; root
	scripts/setup
	deploy/test/upgrade $(REF) sqlite postgres

packages: ## deb and rpm packages in packaging/out (PROGRAMS=DIR: of prebuilt programs; GLIBC=2.28: for old systems too)
	packaging/build

soak: ## random jobs and random faults, every fact compared with accounting: SEED=n JOBS=n (what was compared stays after a difference, and with SOAK_KEEP=1)
	scripts/setup
	nats=$$(scripts/nats-server) && export NATS_SERVER_BIN=$$nats && \
	$(BUILD) && "$(PROGRAMS_DIR)/soak" --seed $(or $(SEED),1) --jobs $(or $(JOBS),300) $(SOAK)

bench: ## the benchmarks, as ratios to raw limits of the same run (release profile; docs/performance.md has results)
	scripts/setup
	nats=$$(scripts/nats-server) && export NATS_SERVER_BIN=$$nats && \
	cargo build --release --package mesh-hook --package smesh --package ingest --package ledger --package webhook-dispatcher --package slurm-submit --package workflow-trigger --package bench --bins && \
	"$${CARGO_TARGET_DIR:-target}/release/bench" $(BENCH)

bench-large: ## the benchmark of a ledger with 10 million events, on SQLite and PostgreSQL (30 GB of disk while it runs)
	$(MAKE) bench BENCH="--only history --history 10000000 --rounds 1 $(BENCH)"

fuzz: ## the parsers against random input, a minute for each target (FUZZ_SECONDS; FUZZ='text types')
	scripts/fuzz $(FUZZ)

fmt: ## format the Rust code
	cargo fmt --all

codegen: ## write the committed protobuf bindings
	cargo xtask codegen

docs: ## write the generated parts of docs/
	cargo xtask docs
	cargo xtask compat

clean-run: ## stop and remove what an interrupted test or demo left in tests/cluster/run
	@for cluster in tests/cluster/run/*/; do [[ ! -d $$cluster ]] || tests/cluster/down "$$cluster" --wipe; done
