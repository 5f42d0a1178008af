# SPDX-License-Identifier: Apache-2.0
# The front door: each target is one line of a script under tools/. CMake and Ninja do the building (CMakePresets.json), in build/PRESET.
# A target with a "##" comment shows up in `make help`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:

# make run MODEL=path/to/model.gguf PORT=9000 ARGS="--threads 2"
MODEL ?=
PORT ?= 8080
ARGS ?=
models := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/troika/models
default_model := $(models)/SmolLM2-135M-Instruct.Q4_1.gguf
export MODEL

.PHONY: help run build test test-long cases oracle bits properties examples templates clients crowd page openapi overhead footprint bench bench-kv bench-mixed bench-stall bench-saturation bench-load bench-batch bench-overload bench-chart fresh-machine lint tidy format clean distclean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## install what is missing, build, serve the default model on 127.0.0.1:8080 (MODEL=, PORT=, ARGS=)
	@tools/setup.sh run
	@tools/build.sh release troika
	@exec build/release/troika serve --model "$(or $(MODEL),$(default_model))" --port $(PORT) $(ARGS)

build: ## install what is missing and build build/release/troika
	@tools/setup.sh build
	@tools/build.sh release troika

test: ## install what the tests need, build every preset, run everything (about 40 minutes on 2 cores)
	@tools/setup.sh test
	@python3 tools/run_tests.py

test-long: ## what takes too long for make test: five minutes a fuzzer, the long tests, clang-tidy (about 50 minutes)
	@tools/setup.sh test
	@python3 tools/run_tests.py --long

oracle: ## compare with the reference implementation (torch, 3 GB of its own set-up) and write the golden files
	@tools/setup.sh test
	@tools/build.sh release
	@tools/oracle/run.sh
	@tools/figures.py oracle --append build/release/tests/test_runtime_oracle build/release/tests/test_runtime_greedy

bits: ## show that answers do not depend on the schedule: equal bits alone, in company, preempted, from a cached prefix, at every level
	@tools/setup.sh test
	@tools/build.sh release
	@tools/figures.py bits build/release/tests/test_runtime_bits build/release/tests/test_runtime_same build/release/tests/test_kernel_check

properties: ## the policy's invariants on a million random steps of a virtual engine, a row each
	@tools/setup.sh test
	@tools/build.sh release test_sched_property test_device_soc_fluid
	@build/release/tests/test_device_soc_fluid
	@tools/figures.py properties build/release/tests/test_sched_property

cases: ## inputs that broke other servers, by id: streams, messages, limits, schemas, HTTP, text
	@tools/setup.sh test
	@tools/build.sh release troika
	@tools/cases.py

openapi: ## have schemathesis try to refute docs/openapi.json on a live server, with more examples than in make test (minutes)
	@tools/setup.sh test
	@tools/build.sh release troika
	@build/venv/bin/python -B tests/api/check_openapi.py --report 300

examples: ## greedy answers of `troika run` beside the float32 reference, into docs/EXAMPLES.md
	@tools/setup.sh test
	@tools/build.sh release troika
	@tools/examples.py

templates: ## compare chat templates with jinja2: hundreds of published ones, all message shapes, prefill
	@tools/setup.sh test
	@tools/build.sh release test_text_template_golden
	@tools/figures.py templates build/release/tests/test_text_template_golden

crowd: ## one minute of 200 badly behaved clients at the server (ARGS="--seconds 600", "--seed 7")
	@tools/setup.sh run
	@tools/build.sh release troika
	@python3 -B tests/crowd/crowd.py --report $(ARGS)

clients: ## openai (Python, Node), LangChain, LiteLLM, Vercel AI SDK and curl against the server: what each covers (ARGS="curl litellm")
	@tools/setup.sh test
	@tools/build.sh release troika
	@tools/clients.py $(ARGS)

page: ## drive the chat page with headless Chromium: send, stream, cancel, reload; screenshots in build/reports
	@tools/setup.sh test
	@tools/build.sh release troika
	@TROIKA_BINARY=build/release/troika build/venv/bin/python -B tests/web/check_page.py --report

overhead: ## what HTTP and JSON cost a streamed token, and 16 streams the decode rate, against the same in process
	@tools/setup.sh test
	@tools/build.sh release bench_api_overhead
	@tools/figures.py overhead build/release/tests/bench_api_overhead

footprint: ## time from start to first token and peak memory of `troika run`, both models
	@tools/setup.sh test
	@tools/build.sh release troika
	@tools/footprint.py

bench: ## prefill, decode, batched decode, load time and memory of the default model (MODEL=, ARGS=)
	@tools/setup.sh run
	@tools/build.sh release troika
	@build/release/troika bench -m "$(or $(MODEL),$(default_model))" $(ARGS)

bench-kv: ## KV memory in pages of 16, 32, 64 tokens against contiguous: bytes lost, time of attention, both models (ARGS="-m MODEL -c 4096")
	@tools/setup.sh test
	@tools/build.sh release troika
	@tools/bench_kv.py $(ARGS)

bench-mixed: ## a person's requests alone and beside background work, troika and llama.cpp, both models (45 minutes; ARGS="--quick")
	@tools/setup.sh test
	@tools/build.sh release troika
	@bench/peers xllamacpp
	@bench/mixed.py $(ARGS)

bench-stall: ## an answer streams and a prompt of 8,000 tokens arrives: the largest gap, troika and llama.cpp (ARGS="--quick")
	@tools/setup.sh run
	@tools/build.sh release troika
	@bench/peers xllamacpp
	@bench/stall.py $(ARGS)

bench-saturation: ## three times more background than the machine can do, for 10 minutes (ARGS="--quick")
	@tools/setup.sh run
	@tools/build.sh release troika
	@bench/saturation.py $(ARGS)

bench-load: ## reactive requests while background rises to 0.80 of capacity, 1B and 8B shapes (30 minutes, 6 GB of files; ARGS="--quick")
	@tools/setup.sh build
	@tools/build.sh release troika
	@bench/load.py $(ARGS)

bench-batch: ## time per token by batch and context; rows of background in a person's answer, fixed and adaptive (ARGS="--quick")
	@tools/setup.sh run
	@tools/build.sh release troika
	@bench/batch.py $(ARGS)

bench-overload: ## twice the work that fits: refusing first against shortening first (ARGS="--quick")
	@tools/setup.sh run
	@tools/build.sh release troika
	@bench/overload.py $(ARGS)

bench-chart: ## draw the README's picture from the last make bench-mixed (ARGS="--output FILE")
	@bench/chart.py $(ARGS)

fresh-machine: ## make run and make test in a bare Debian 12 chroot, from a clone; needs root and debootstrap
	@tools/fresh-machine.sh

tidy: ## check the rules that a program can check: include table, banned calls, sizes, documents (seconds)
	@python3 tests/tidy/test_tidy.py
	@python3 tests/tidy/tidy.py

lint: ## clang-tidy over all of src (minutes)
	@tools/setup.sh test
	@tools/build.sh clang
	@tools/lint.sh

format: ## clang-format over every C file
	@tools/format.sh

clean: ## remove what was built, but not the Rust library, the Python environment and what was downloaded
	@rm -rf build/release build/debug build/clang build/asan build/tsan build/fuzz build/reports

distclean: ## remove all of build/
	@rm -rf build
