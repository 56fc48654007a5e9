# Everything here sets up what it needs by itself; `make help` lists the targets.
PYTHON ?= python3
BIN    := .venv/bin
JSON   ?=
ARGS   ?=
LANES  ?= 2
MINUTES ?=
SEED   ?=
SEEDS  ?= 200
RUNS   ?= 5

.DEFAULT_GOAL := help
.PHONY: help demo compose-demo test check proto check-proto tools tools-or-not test-tools screenshots bench bench-gpu bench-recovery test-gpu test-peers chaos soak sim clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14
	@echo; echo 'options: make demo JSON=1   make demo ARGS="--ranks-per-node 4"   make test ARGS="-k lab -x" LANES=0'

demo: .venv/.stamp tools ## a real two-node job is saved, loses a node, and comes back bit-exact (root)
	@$(BIN)/allstop demo $(if $(filter-out 0 no false,$(JSON)),--json) $(ARGS)

compose-demo: .venv/.stamp ## the same story in containers: 3 etcd, 2 coordinators, 3 nodes (Docker, or root)
	@$(BIN)/python -m deploy.containers $(if $(filter-out 0 no false,$(JSON)),--json) $(ARGS)

test: .venv/.stamp tools test-tools ## all tests; those that need root, CRIU, etcd or Chromium skip where that is absent
	@$(BIN)/python -m pytest --ignore=tests/gpu --ignore=tests/peers -n $(LANES) $(ARGS)

check: .venv/.stamp check-proto ## style, types, who may import whom, generated code up to date
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

tools-or-not:
	@$(PYTHON) -m tools || echo 'without some of the tools: what needs them is left out, and says so'

tools: ## find or fetch CRIU, etcd, nft and iproute2, and prove CRIU on this kernel
	@$(PYTHON) -m tools

test-tools: tools ## find or fetch what only tests need: promtool, and Debian's Chromium (by apt)
	@$(PYTHON) -m tools tests

# $(call generate,DIR): the Python code of every .proto, below DIR
generate = $(BIN)/python -m grpc_tools.protoc -I proto --python_out=$(1) --pyi_out=$(1) \
	--grpc_python_out=$(1) proto/allstop/v1/*.proto

proto: .venv/.stamp ## regenerate the code beside proto/allstop/v1/*.proto
	@$(call generate,proto)

check-proto: .venv/.stamp
	@new=$$(mktemp -d) && trap 'rm -rf "$$new"' EXIT && $(call generate,"$$new") && \
	diff -r -x '*.proto' -x '__init__.py' -x __pycache__ -x py.typed "$$new/allstop" proto/allstop || \
	{ echo 'proto/: generated code differs, run `make proto`' >&2; exit 1; }

chaos: .venv/.stamp tools ## kill, freeze and cut off everything while a real job is saved and restored (root)
	@$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: .venv/.stamp tools ## a real job trains under the auto policy while machines are taken: MINUTES=20 (root)
	@$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),20) $(if $(SEED),--seed $(SEED)) $(ARGS)

sim: .venv/.stamp ## real coordinators and shims in simulated time, SEEDS=2000 runs full of faults; SEED=N repeats one
	@$(BIN)/python -m tests.sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

screenshots: .venv/.stamp test-tools ## docs/images and the README's trace, taken of the demo's job while it is saved (root)
	@$(BIN)/python -m tests.screenshots

bench: .venv/.stamp tools ## measure: hook cost, pause and restore ratios, coordination alone
	@$(BIN)/python -m bench $(if $(filter-out 0 no false,$(JSON)),--json) $(ARGS)

test-gpu: .venv/.stamp tools-or-not ## the tests that need a GPU, by library and program; with CRIU where it works (root)
	@ALLSTOP_MUST_RUN=$${ALLSTOP_MUST_RUN:-} $(BIN)/python -m pytest tests/gpu $(ARGS)

test-peers: .venv/.stamp tools ## jobs of torchft and Ray Train under allstop; fetches both, 2.5 GB the first time (root)
	@$(BIN)/python -m pytest tests/peers $(ARGS)

bench-gpu: .venv/.stamp tools-or-not ## measure what device memory costs on this machine's GPU (root)
	@$(BIN)/python -m bench.gpu $(if $(filter-out 0 no false,$(JSON)),--json) $(ARGS)

bench-recovery: .venv/.stamp tools ## lost nodes under torchrun, torchft, Ray Train and allstop, side by side; RUNS=5 (root, an hour)
	@$(BIN)/python -m bench.recovery --runs $(RUNS) $(ARGS)

clean: ## remove what was made here: .venv, .tools, pictures, caches
	rm -rf .venv .tools .tools.new .engine artefacts .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.stamp: pyproject.toml requirements/constraints.txt
	@$(PYTHON) -m tools system
	@echo 'making .venv (PyTorch among others: some minutes the first time)'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c requirements/constraints.txt -e '.[dev,demo,gpu]'
	@touch $@
