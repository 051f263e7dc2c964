# What one does with a checkout of flexo. Every target installs what it needs (setup.sh), and does nothing twice.
# Recipes name files from here on, never by $(CURDIR): a folder's name may hold spaces and quotes.

SHELL := /bin/bash
.DEFAULT_GOAL := help

BIN := .venv/bin
# Tests and demo see this checkout's programs first, Slurm's daemons too, no display, and no other Python's packages.
export PATH := $(CURDIR)/.venv/bin:$(PATH):/usr/local/sbin:/usr/sbin:/sbin
export MPLBACKEND := Agg
# Without PYTHONDONTWRITEBYTECODE: with it, each worker of each job would compile flexo anew.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PYTHONDONTWRITEBYTECODE
# Tests mostly wait: more of them than cores go side by side.
SIDE_BY_SIDE := --numprocesses=3
LABS_SIDE_BY_SIDE := --numprocesses=$(or $(LABS),3) --dist=loadfile --no-loadscope-reorder
ON_LABS := slurm training chaos web
WITHOUT_LABS := etcd prometheus packages yarn
# Horovod with its native library, before the one that set-up installs, which has none.
ON_NATIVE := PYTHONPATH="$$PWD/.venv/native"
# Accelerate, HF's Trainer and Lightning, with trackers: the newest releases, and those of a year ago.
ON_FRAMEWORKS := PYTHONPATH="$$PWD/.venv/torch-matrix:$$PWD/.venv/wandb"
ON_PREVIOUS_FRAMEWORKS := PYTHONPATH="$$PWD/.venv/previous-frameworks:$$PWD/.venv/wandb"
# PyTorch of the minor release before the one that set-up installs.
ON_PREVIOUS_TORCH := PYTHONPATH="$$PWD/.venv/previous-torch"
# Tests with real processes, in three runs. What fails there runs once more at the end, with nothing beside it.
on_labs = $(BIN)/pytest tests -m 'not native $(usual)' -o cache_dir=build/failed/labs $(call but,unit $(WITHOUT_LABS))
without_labs = $(BIN)/pytest tests -m 'not native $(usual)' -o cache_dir=build/failed/others $(call but,unit $(ON_LABS))
on_native = $(ON_NATIVE) $(BIN)/pytest tests -m 'native $(usual)' -o cache_dir=build/failed/native $(call but,unit $(WITHOUT_LABS))
ALONE := --last-failed --last-failed-no-failures=none
# After any other end of a run, or a file that could not be read, other tests may not have run at all.
only_tests_failed = [ $$? = 1 ] && ! grep -s true build/failed/$(1)/v/cache/lastfailed | grep -qv ::
but = $(patsubst %,--ignore=tests/%,$(1)) # all tests but those in these folders

.PHONY: help setup setup-native demo demo-yarn demo-loan demo-sharing demo-service test test-all test-unit coverage test-slurm test-slurm-matrix test-training test-torch test-frameworks test-torch-matrix test-web test-yarn test-chaos test-soak bench-load bench-runtime bench-data bench-torch bench-papers bench-price bench-scheduler bench-loaning bench-fidelity bench-testbed bench-scale bench-reading bench-abuse bench-yarn bench-sharing bench-jsa bench-service deb rpm wheel pictures docs release lint clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what everything below needs (as root on Debian: packages too)
	@./setup.sh all
	@echo 'flexo: everything is in place. Next: . .venv/bin/activate && flexo lab up    (a cluster on this machine; as root)'

setup-native: ## Horovod's native library, for comparisons with stock Horovod (uses no CUDA; minutes, once)
	@./setup.sh native

demo: ## an elastic job on a real Slurm cluster on this machine, start to end (ARGS=--web: on web pages, too)
	@./setup.sh all --lab=$@
	@$(BIN)/python -m flexo_demos.elastic $(ARGS)

demo-yarn: ## the same story on a real YARN cluster on this machine
	@./setup.sh yarn --lab=$@
	@$(BIN)/python -m flexo_demos.elastic --yarn $(ARGS)

demo-loan: ## inference servers lent to training and taken back, one day in four minutes, on the same kind of cluster
	@./setup.sh all --lab=$@
	@$(BIN)/python -m flexo_demos.loans $(ARGS)

demo-sharing: ## a second job on GPUs that others hold, on the same kind of cluster (pretended GPUs: none takes part)
	@./setup.sh all --lab=$@
	@$(BIN)/python -m flexo_demos.sharing $(ARGS)

demo-service: ## two trainings share Aggregators, and processes are killed, on the same kind of cluster
	@./setup.sh all --lab=$@
	@$(BIN)/python -m flexo_demos.service $(ARGS)

test: usual := and not thorough
test: ## lint, the plugin's own checks, and the tests of what users rely on (45 minutes on two slow cores)
test-all: export FLEXO_THOROUGH := yes
test-all: ## the same, with the tests of demos, benchmarks and judges, rarer cases, and all random examples
test test-all:
	@./setup.sh yarn --lab=$@
	@[ $@ = test ] || ./setup.sh recipes
	$(MAKE) --no-print-directory -C slurm_plugin check fuzz
	@failed=0 again=; mkdir -p build; rm -rf build/failed; \
	$(BIN)/pytest tests/unit -m 'not native $(usual)' $(SIDE_BY_SIDE) || failed=1; \
	echo 'beside what follows, told at the end: lint, $(WITHOUT_LABS), setup-native (build/{lint,without-labs,setup-native}.log)'; \
	$(MAKE) --no-print-directory run-lint >build/lint.log 2>&1 & lint=$$!; \
	$(without_labs) >build/without-labs.log 2>&1 & others=$$!; \
	./setup.sh native >build/setup-native.log 2>&1 & native=$$!; \
	trap 'kill $$lint $$others $$native 2>/dev/null || true' EXIT; \
	$(on_labs) $(LABS_SIDE_BY_SIDE) --durations=20 || { $(call only_tests_failed,labs) && again=labs || failed=1; }; \
	if wait $$native; then $(on_native) $(LABS_SIDE_BY_SIDE) || { $(call only_tests_failed,native) && again="$$again native" || failed=1; }; \
	else cat build/setup-native.log; failed=1; fi; \
	wait $$others || { $(call only_tests_failed,others) && again="$$again others" || failed=1; }; cat build/without-labs.log; \
	wait $$lint || failed=1; cat build/lint.log; trap - EXIT; \
	for each in $$again; do \
	echo "what has failed of $$each, once more, with nothing beside it:"; \
	case $$each in \
	labs) $(on_labs) $(ALONE) ;; \
	native) $(on_native) $(ALONE) ;; \
	others) $(without_labs) $(ALONE) ;; \
	esac || failed=1; \
	done; \
	exit $$failed

test-unit: ## tests that start no process (a minute on two cores)
	@./setup.sh unit
	$(BIN)/pytest tests/unit -m 'not (thorough or processes)' $(SIDE_BY_SIDE)

coverage: ## unit tests, and the lines and branches that they do not reach (build/coverage/html)
	@./setup.sh unit
	@rm -rf build/coverage
	$(BIN)/coverage run -m pytest tests/unit $(SIDE_BY_SIDE) $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report --skip-covered --sort=cover | tail -n 40

test-slurm: ## tests against a real Slurm cluster on this machine (root)
	@./setup.sh all --lab=$@
	$(BIN)/pytest tests/slurm

test-slurm-matrix: ## flexo on Slurm 22.05, 24.11 and 26.05, in folders that mmdebstrap makes (ARGS='--suites forky --parts qos')
	@./setup.sh unit --lab=$@
	@PYTHONPATH=tests/slurm $(BIN)/python -m matrix $(ARGS)

test-training: ## tests with real Horovod and PyTorch
	@./setup.sh all --lab=$@
	@./setup.sh native
	$(BIN)/pytest tests/training -m 'not native'
	$(ON_NATIVE) $(BIN)/pytest tests/training -m native

test-torch: ## PyTorch's private calls, and DDP scripts that grow, on the two newest minor releases of PyTorch
	@./setup.sh previous-torch
	$(BIN)/pytest tests/unit/horovod_elastic/test_torchs_own.py
	$(ON_PREVIOUS_TORCH) $(BIN)/pytest tests/unit/horovod_elastic/test_torchs_own.py
	$(ON_PREVIOUS_TORCH) $(BIN)/pytest tests/training/test_ddp.py -k grows_and_shrinks

test-frameworks: ## Accelerate, HF's Trainer and Lightning that grow, shrink and lose workers: the newest releases and those of a year ago (15 minutes)
	@./setup.sh frameworks
	$(ON_FRAMEWORKS) $(BIN)/pytest tests/training/test_frameworks.py $(ARGS)
	$(ON_PREVIOUS_FRAMEWORKS) $(BIN)/pytest tests/training/test_frameworks.py $(ARGS)

# A target whose ARGS name Horovod's own core needs its library, too.
for_horovod = $(if $(findstring horovod,$(ARGS)),$(1),$(2))

test-web: ## the web pages in a real Chromium: on a real Slurm cluster, and large ones that are pretended (screenshots in build/web)
	@./setup.sh web --lab=$@
	$(BIN)/pytest tests/web $(ARGS)

test-yarn: ## tests on a real YARN: a ResourceManager and NodeManagers of Hadoop on this machine
	@./setup.sh yarn --lab=$@
	$(BIN)/pytest tests/yarn $(ARGS)

test-chaos: ## things fail at random: single jobs' processes, a whole cluster's daemons and connections (40 minutes; ARGS='--system --seeds 1-20')
	@./setup.sh all --lab=$@
	@$(call for_horovod,./setup.sh native,true)
	@$(call for_horovod,$(ON_NATIVE):tests,PYTHONPATH=tests) $(BIN)/python -m chaos $(ARGS)

test-soak: ## an hour of jobs, failures and restarts: flexod must not grow with it (ARGS='--minutes 15')
	@./setup.sh all --lab=$@
	@PYTHONPATH=tests $(BIN)/python -m soak $(ARGS)

bench-load: ## what flexod costs: its CPU, and slurmctld's time (about 4 minutes)
	@./setup.sh all --lab=$@
	@$(BIN)/python -m flexo_bench.load

bench-runtime: ## what a resize costs, beside stock Horovod and stop-restart (about 20 minutes; ARGS='--help')
	@./setup.sh all --lab=$@
	@./setup.sh native
	@$(ON_NATIVE) $(BIN)/python -m flexo_bench.runtime $(ARGS)

bench-data: ## what reading mini-batches ahead saves, beside PyTorch's DataLoader (5 minutes; ARGS='--rounds 3')
	@./setup.sh all
	@$(BIN)/python -m flexo_bench.read_ahead $(ARGS)

test-torch-matrix: ## public scripts by others, unmodified, that grow, shrink and lose workers (hours; SCRIPTS=DIR has or gets them; ARGS='-k trl')
	@./setup.sh torch-matrix
	@$(BIN)/pytest -v tests/torch_matrix/elastic_scripts.py --scripts '$(or $(SCRIPTS),build/torch-matrix/sources)' $(ARGS)

bench-torch: ## scripts of torch.distributed that grow, shrink and lose workers, beside torchft and torchrun (about an hour; ARGS='--quick')
	@./setup.sh all --lab=$@
	@./setup.sh torchft
	@$(BIN)/python -m flexo_bench.elastic_ddp $(ARGS)

bench-papers: ## published figures beside ours (about an hour; ARGS='--parts ibm ibm-figures pollux' for a few minutes)
	@./setup.sh unit
	@$(BIN)/python -m flexo_bench.papers $(ARGS)

bench-price: ## every policy at several costs of a resize, beside Pollux and Sia (hours; SIA=DIR has Sia's artifact; ARGS='--quick' for minutes)
	@./setup.sh unit
	@$(BIN)/python -m flexo_bench.price $(if $(SIA),--sia '$(SIA)') $(ARGS)

bench-scheduler: ## what deciding and simulating cost (about ten minutes; ARGS='--parts decision pollux' for one)
	@./setup.sh unit
	@$(BIN)/python -m flexo_bench.scheduler $(ARGS)

bench-fidelity: ## one workload on a real lab and in the simulator (about 25 minutes; ARGS='--policies lyra --repeats 3')
	@./setup.sh all --lab=$@
	@$(BIN)/python -m flexo_bench.fidelity $(ARGS)

bench-testbed: ## the testbed of Lyra's slides, compressed: 180 jobs, servers on loan, lab and simulator (50 minutes; ARGS='--schemes basic')
	@./setup.sh all --lab=$@
	@$(BIN)/python -m flexo_bench.testbed $(ARGS)

bench-scale: ## flexod beside a slurmctld with thousands of nodes (about 90 minutes; ARGS='--nodes 500 --jobs 2000 --leaders 100')
	@./setup.sh all --lab=$@
	@$(BIN)/python -m flexo_bench.scale $(ARGS)

bench-reading: ## 5,000 nodes of Slurm 26.05 read with pyslurm and with Slurm's commands: cost and content (about 15 minutes; ARGS='--nodes 500')
	@./setup.sh unit --lab=$@
	@PYTHONPATH=tests/slurm $(BIN)/python -m matrix.bench_reading $(ARGS)

bench-abuse: ## an honest leader's round trips while somebody abuses flexod (about 5 minutes; ARGS='--cases slow_reads')
	@./setup.sh all --lab=$@
	@$(BIN)/python -m flexo_bench.abuse $(ARGS)

bench-yarn: ## elastic jobs on YARN: how soon they grow, what they cost, what polls of 2,000 nodes cost (24 minutes; ARGS='--parts grants')
	@./setup.sh yarn --lab=$@
	@$(BIN)/python -m flexo_bench.yarn $(ARGS)

bench-sharing: ## what sharing a GPU costs one job and gives another, beside no control and a duty cycle (ARGS=--cpu pretends a GPU)
	@./setup.sh unit
	@$(BIN)/python -m flexo_bench.sharing $(ARGS)

bench-jsa: ## step times of two models as the job scalability analyzer expects them, beside measured ones (11 minutes; ARGS='--models cnn')
	@./setup.sh all
	@$(BIN)/python -m flexo_bench.jsa $(ARGS)

bench-service: ## Aggregators beside the all-reduce and dedicated servers, shared by jobs in Slurm, and published figures (an hour; ARGS='--parts comm --quick')
	@./setup.sh all
	@$(BIN)/python -m flexo_bench.service $(ARGS)

deb: ## Debian packages of daemon, web pages and plugin, in build/deb
	@./setup.sh unit
	@$(BIN)/python packages/build_debs.py $(ARGS)

rpm: ## RPM packages of daemon, web pages and plugin, in build/rpm (for the system that they are built on)
	@./setup.sh unit
	@$(BIN)/python packages/build_rpms.py $(ARGS)

wheel: ## flexo's wheels in build/wheel: flexo for users' environments, flexo-site for sites
	@./setup.sh unit
	@$(BIN)/python packages/own_wheels.py build/wheel

pictures: ## draw the drawings of docs/images again, and photograph web pages, flexo top and a report (as root, minutes)
	@./setup.sh web --lab=$@
	@$(BIN)/python docs/site/pictures.py
	@$(BIN)/python docs/site/decision_picture.py
	@$(BIN)/python docs/site/screenshots.py

docs: ## the documentation as a site, in build/site
	@./setup.sh unit
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs --quiet build --strict --config-file docs/site/mkdocs.yml
	@echo 'flexo: the site is build/site/index.html'

bench-loaning: ## inference servers on loan beside Lyra's figures (80 minutes of CPU, two simulations at a time; ARGS='--scale 0.0625 --seeds 3')
	@./setup.sh unit
	@$(BIN)/python -m flexo_bench.loaning $(ARGS)

release: ## tag this commit as the version of daemon/flexo/__init__.py, with the changelog's words
	@./setup.sh lint
	@$(BIN)/python packages/release.py

lint: ## ruff, mypy, which rooms may import which, and names that are retired
	@./setup.sh lint
	@$(MAKE) --no-print-directory run-lint

.PHONY: run-lint
run-lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python packages/retired_names.py

clean: ## remove what was built and cached here; .venv and the Horovod wheels stay
	$(MAKE) --no-print-directory -C slurm_plugin clean
	rm -rf build .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
