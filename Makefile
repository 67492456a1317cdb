# Each target does its own set-up and is safe to run twice. Python >= 3.11 is all that `demo` and `lint` need;
# `test` also wants a C compiler, `integration`, `e2e` and `cluster` also Go >= 1.26 (or ready binaries in KUBEBUILDER_ASSETS).
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
STAMP := $(VENV)/.requirements-dev
# Versions whose control planes `integration` runs on; `e2e` runs on nodes of the newest.
KUBERNETES ?= 1.37 1.36
# Test processes at once: three for each of two cores, because many tests wait more than they compute.
WORKERS ?= 6
# Where it is set, each test process compiles every test and each program of ours every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help docs demo test rehearsal safety scale placement mutants release-check gpu-parcel gpu-parcel-check integration e2e cluster cluster-down lint format bench pictures ui-pictures golden manifests protos lock release clean

help: ## What there is
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(STAMP): requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gpu-share needs Python 3.11 or newer; say make PYTHON=...")'
	@echo "setting up $(VENV) (once, a minute or two)"
	@$(PYTHON) -m venv $(VENV)
	@$(RUN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	@$(RUN)/pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP) ## The whole loop in ten seconds: rewrite, kill, audit (no root, no compiler, no cluster; ARGS=--write puts its transcript and picture into docs/)
	@$(RUN)/python -m tests.demo $(ARGS)

test: $(STAMP) ## Unit, golden, property and node-level tests
	@$(RUN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not controlplane"

safety: $(STAMP) ## Every safety test in full, in two parallel runs, figures into docs/design/safety.md (about an hour; ARGS="-k reuse" runs a part)
	@$(RUN)/python -m tests.safety $(ARGS)

scale: $(STAMP) ## Placement at scale on a real control plane (ARGS="main", "raised", "chaos", "churn" or "crash"; docs/design/scale.md; up to half an hour each)
	@$(RUN)/python -m tests.testbed.cluster build --control-plane-only
	@$(RUN)/python -m tests.load.scale $(ARGS)

placement: $(STAMP) ## Simulate placement on up to 5,000 nodes and compare with docs/design/placement.md (minutes; ARGS=--write renews it)
	@$(RUN)/python -m tests.load.sim $(ARGS)

mutants: $(STAMP) ## Mutate detection and kills in every small way; the unit tests have to notice (a quarter of an hour; ARGS=MODULE)
	@nice $(RUN)/python -m tests.mutation $(ARGS)

ifneq ($(filter release-check,$(MAKECMDGOALS)),)
$(if $(filter command,$(origin KUBERNETES) $(origin ARGS)),$(error release-check runs everything; it takes neither KUBERNETES nor ARGS))
endif
release-check: lint safety mutants ## All that CI runs, in full: every trial, both versions whole (hours; before a release)
	@GPU_SHARE_TESTS=full $(RUN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not controlplane" --ignore=tests/safety --timeout=1200
	@GPU_SHARE_TESTS=full $(MAKE) integration e2e ARGS=
	@GPU_SHARE_TESTS=full $(MAKE) e2e ARGS=vm
	@$(MAKE) gpu-parcel-check ARGS=

integration: $(STAMP) ## The product on real control planes, without nodes: the newest version, and the oldest for what differs (ARGS=FILE runs a part)
	@$(if $(strip $(KUBERNETES)),,$(error KUBERNETES is empty; it has to name versions, such as 1.37))
	@set -e; for each in $(KUBERNETES); do $(RUN)/python -m tests.testbed.cluster build --control-plane-only --kubernetes $$each; done
	@$(RUN)/python -m tests.testbed.parallel $(KUBERNETES:%=--planes %) $(ARGS)

e2e: $(STAMP) ## The product on real nodes, in parallel sessions (first run builds Kubernetes; ARGS=FILE runs a part)
	@$(if $(filter command,$(origin KUBERNETES)),$(error e2e runs on nodes of the newest Kubernetes; integration takes KUBERNETES))
	@$(RUN)/python -m tests.testbed.cluster build
	@$(RUN)/python -m tests.testbed.parallel $(ARGS)

rehearsal: $(STAMP) ## Replace parts at random on two real nodes under load, and check after each step (root; hours; ARGS="--seed 1 --minutes 30")
	@$(RUN)/python -m tests.testbed.cluster build
	@$(RUN)/python -u -m tests.rehearsal $(ARGS)

cluster: $(STAMP) ## Start a cluster of one real node to play with and print its kubeconfig (root, or ARGS=--control-plane-only)
	@$(RUN)/python -m tests.testbed.cluster up $(ARGS)

cluster-down: $(STAMP) ## End it
	@$(RUN)/python -m tests.testbed.cluster down

lint: $(STAMP) ## ruff, mypy --strict, import-linter, house rules
	@$(RUN)/ruff format --check .
	@$(RUN)/ruff check .
	@$(RUN)/mypy
	@$(RUN)/lint-imports
	@$(RUN)/python -m tests.house

docs: $(STAMP) ## Build the site of docs/ into .build/site; a dead link, a missing anchor and an unlisted page fail
	@NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build

format: $(STAMP) ## Rewrite the sources as ruff likes them
	@$(RUN)/ruff format .
	@$(RUN)/ruff check --fix .

pictures: $(STAMP) ## Draw the Grafana dashboard into docs/pictures from a real Prometheus (4 minutes; root; needs helm and prometheus from make integration)
	@$(RUN)/python -m tests.integration.processes.dashboard $(ARGS)

ui-pictures: $(STAMP) ## Draw the pages of gpu-share ui into docs/pictures (half a minute; fetches headless Chromium)
	@GPU_SHARE_PICTURES=1 $(RUN)/python -m pytest -n 0 -q tests/integration/processes/test_ui.py -k each_page

bench: $(STAMP) ## Time the webhook and minimal servers (ARGS=api: at an API server; fair: beside attackers; soak: ten minutes; ready: pods on a real node, root; ui: the first page of the web view)
	@$(RUN)/python -m tests.load.bench $(ARGS)

golden: $(STAMP) ## Regenerate tests/golden/*/expected.txt, NOTICE, pictures of gpu-share top, migrated manifests, and what documents take from code (review the diff)
	@$(RUN)/python -m tests.golden
	@$(RUN)/python -m tests.support.frameworks
	@$(RUN)/python -m tests.support.annotations
	@$(RUN)/python -m tests.support.reasons
	@$(RUN)/python -m tests.support.command_line
	@$(RUN)/python -m tests.support.values
	@$(RUN)/python -m tests.support.notice
	@$(RUN)/python -m tests.unit.gpushare_cli.test_top_pictures
	@$(RUN)/python -m tests.unit.gpushare_cli.migrate.golden

protos: $(STAMP) ## Generate enforcer/dra/stubs from its .proto files
	@$(RUN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. enforcer/dra/stubs/*.proto

manifests: $(STAMP) ## Render deploy/manifests/install.yaml from the chart (needs helm: on PATH, in HELM, or from make integration)
	@$(RUN)/python -m tests.support.helm

# What libraries ask for and no program here imports: the image goes without it. A test compares.
UNUSED := aiohappyeyeballs aiohttp aiohttp-retry aiosignal attrs frozenlist multidict propcache pycparser tzdata yarl
lock: $(STAMP) ## Pin and hash the dependencies again
	@$(RUN)/pip install --quiet --disable-pip-version-check uv
	@$(RUN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --all-extras $(UNUSED:%=--no-emit-package %) pyproject.toml -o requirements.txt
	@$(RUN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --all-extras --group dev pyproject.toml -c requirements.txt -o requirements-dev.txt

# Python of the machine the parcel is made for.
PYTHON_THERE ?= 3.12
gpu-parcel: $(STAMP) ## Make .build/parcel: a cluster with gpu-share that run.py cluster starts on a machine with a GPU (first run builds Kubernetes)
	@$(RUN)/python -m tests.gpu.parcel.make --python $(PYTHON_THERE)

gpu-parcel-check: $(STAMP) ## Run it with simulated GPUs on a machine with Python alone, a folder (root; ARGS="--only 1" runs a part)
	@$(RUN)/python -m tests.gpu.parcel.machine --python $(PYTHON_THERE) $(ARGS)

release: $(STAMP) ## Build wheel, source archive, chart, bill of materials (CycloneDX) and checksums into .build/release
	@$(RUN)/python -m tests.support.release

clean: ## Remove what make made here (the cache under ~/.cache/gpu-share stays)
	@rm -rf $(VENV) .build mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis
