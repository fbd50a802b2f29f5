# The few commands to remember. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# With CORE=2.21, lint, unit tests and ansible-test run on that ansible-core, in an environment of its own (tests/cores.py).
VENV ?= $(if $(CORE),build/cores/$(CORE),.venv)
# Of the same version the system's own, which is optimized: one that pyenv has built is a tenth slower. Never that of an environment,
# which may be the one that is made anew
VERSION_OF := -c 'import ensurepip, sys; print(*sys.version_info[:2])' 2>/dev/null
PYTHON ?= $(shell [ "$$(/usr/bin/python3 $(VERSION_OF))" = "$$(python3 $(VERSION_OF))" ] && echo /usr/bin/python3 \
  || python3 -c 'import sys; print(sys._base_executable)')
PY := $(VENV)/bin/python
BIN := $(VENV)/bin
HOSTS ?= 2
LAB ?= lab
export HOSTS LAB
# Programs find their bytecode again, also where the environment would have it that nobody keeps any: Ansible starts in half the time.
export PYTHONDONTWRITEBYTECODE :=
# Nor does Python read a module that comes through its standard input byte by byte, which costs half a second of a local task.
export PYTHONUNBUFFERED :=
# Scenarios and playbooks use this checkout's tools and collection, whatever is installed elsewhere.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
INVENTORY := inventories/lab

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

venv: $(if $(CORE),core,$(VENV)/.done) ## Python environment with the pinned tools (CORE=2.21: with that ansible-core)
core:
	@python3 tests/cores.py --install $(if $(filter-out file,$(origin PYTHON)),--python "$(PYTHON)") $(CORE)
# Without bytecode, most of which is of collections that nobody imports; of the rest, the first import writes it
$(VENV)/.done: requirements.txt requirements-dev.txt
	@echo "make: installing the pinned tools into $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/pip install --quiet --no-compile --disable-pip-version-check "$$(grep '^pip==' requirements-dev.txt)"
	@$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -r requirements-dev.txt
	@touch $@

demo: ## bare machine -> two hosts that read handwritten digits
	@$(MAKE) --no-print-directory --jobs=2 venv lab-base
	@$(BIN)/python lab/demo.py

lab-base: # by any Python, while pip is busy
	@python3 lab/lab.py base

lab: venv ## bring up HOSTS=2 lab hosts
	@$(PY) lab/lab.py up

lab-down: venv ## take the lab away
	@$(PY) lab/lab.py down

converge: venv ## site.yml on the running lab (ARGS=--check ...)
	@$(BIN)/ansible-playbook -i $(INVENTORY) playbooks/site.yml $(ARGS)

status: venv ## what differs on the running lab
	@$(BIN)/ansible-playbook -i $(INVENTORY) playbooks/status.yml $(ARGS)

check: venv ## prove by inference on the running lab
	@$(BIN)/ansible-playbook -i $(INVENTORY) playbooks/check.yml $(ARGS)

lint: venv ## ruff, mypy, yamllint, ansible-lint (production), changelog fragments, generated docs, plain words
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/yamllint --strict .
	@$(BIN)/ansible-lint --offline --strict
	@$(BIN)/antsibull-changelog lint
	@$(PY) tests/docs.py --check
	@$(PY) tests/words.py

changelog: venv ## CHANGELOG.md out of changelogs/fragments, for the version in galaxy.yml
	@$(BIN)/antsibull-changelog release --update-existing --version "$$(sed -n 's/^version: //p' galaxy.yml)"

transfers: ## Debian's rsync and rclone, where they are missing
	@if ! command -v rsync >/dev/null || ! command -v rclone >/dev/null; then \
	  echo "make: installing rsync and rclone for the tests of transfers"; \
	  apt-get update -qq; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends rsync rclone >/dev/null; \
	fi

unit: venv ## unit tests
	@$(MAKE) --no-print-directory transfers
	@$(PY) -m pytest

lint-models: venv ## lint the Triton repository REPO=dir, for RELEASE=24.01 (ARGS=--json ...)
	@PYTHONPATH=collections $(PY) -m ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint \
	  $(or $(REPO),$(error REPO=dir names the repository to lint)) $(if $(RELEASE),--release $(RELEASE)) $(ARGS)

lint-corpus: venv ## ask real Tritons again what they load of tests/lint_corpus, and compare the linter with them
	@PYTHONPATH=collections $(PY) tests/lint_corpus/ask.py

faults: venv ## faults of models on three bare servers of Triton, with clients that ask through them (docs/reliability.md)
	@began=$$SECONDS; $(PY) -m pytest tests/faults; echo "faults: $$((SECONDS - began)) s"

browser: ## Debian's Chromium and its driver, where they are missing
	@if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then \
	  echo "make: installing Chromium for the tests of the report"; \
	  apt-get update -qq; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null; \
	fi

report-test: venv ## the report in a browser
	@$(MAKE) --no-print-directory browser
	@$(PY) -m pytest tests/report

report-image: venv browser ## docs/images/report.png, of a made-up fleet
	@$(PY) tests/report/image.py docs/images/report.png

molecule: molecule-default molecule-production molecule-serving molecule-models molecule-runfile ## scenarios on labs: the whole way, docs/production.md, every kind of model, the three modes, the drivers of today
molecule-default molecule-production molecule-serving molecule-models molecule-runfile: molecule-%: venv
	@tests/molecule.sh $*

molecule-cores: venv ## scenario `default` on each supported ansible-core, with a Python that it supports (CORES="2.21"; not in `make test`)
	@$(PY) tests/cores.py $(CORES)

soak: venv ## KILLS=70 runs that are killed at random while clients ask, on a lab of its own; figures: build/bench/kills.json
	@SOAK_KILLS=$(or $(KILLS),70) tests/molecule.sh models

sanity: venv ## ansible-test over what the collection ships (ARGS="--test validate-modules" ...)
	@$(PY) tests/sanity/run.py $(ARGS)

sanity-newest: venv ## the same by the newest ansible-core, in a Debian 13 made by debootstrap
	@$(PY) tests/sanity/newest.py $(ARGS)

test-quick: lint unit ## lint and unit tests

# Behind the other packages, as both ask apt; the browser comes with the last lane, when nobody else does
packages: transfers
	@$(MAKE) --no-print-directory lab-base

# Six at a time, as each waits for something now and then. The longest first, so that none of them is left over, and the others give way to them.
# What needs no image of the lab begins while those are made.
LANES := molecule-default molecule-serving molecule-models molecule-runfile molecule-production unit faults lint report-test
test: ## everything; the output of each lane is in build/log
	@rm -f build/log/lanes
# What each lane took and why it failed is the end of the output, of which a CI may keep no more
	@code=0; $(MAKE) --no-print-directory --jobs=6 --keep-going $(LANES:%=lane-%) || code=$$?; \
	  echo "test: all lanes:"; cat build/log/lanes; exit $$code
$(LANES:%=lane-%): venv
lane-unit: transfers
$(filter-out lane-unit lane-lint,$(LANES:%=lane-%)): packages
GIVE_WAY := unit lint molecule-production molecule-runfile
$(GIVE_WAY:%=lane-%): PRIORITY := nice -n 5
$(GIVE_WAY:%=lane-%): export LAB_CPU_SHARES := 512
# The longest of all goes before
lane-molecule-serving: PRIORITY := nice -n -4
lane-molecule-serving: export LAB_CPU_SHARES := 2048
lane-%:
	@$(PRIORITY) tests/lane.sh $* $(MAKE) --no-print-directory $*

build/heavy/.done: tests/heavy/requirements.txt
	@echo "make: installing what the heavy tests need into build/heavy"
	@python3 -m venv build/heavy
	@build/heavy/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

test-heavy: build/heavy/.done ## what needs large downloads: models out of PyTorch, DALI (not in `make test`)
	@build/heavy/bin/python -m pytest tests/heavy

bench-serving: venv ## how fast rbln models are served, against targets (ARGS="--only memory" ...); wants a quiet machine
	@PYTHONPATH=lab:lab/models:collections $(PY) tests/bench/serving.py $(ARGS)

bench-models: venv ## a change of models beside what it cannot do without, on a lab of its own: ten models, 2 GiB, 4 hosts; wants a quiet machine
	@$(PY) tests/bench/models.py $(ARGS)

build/pyinfra/.done: tests/bench/requirements.txt
	@echo "make: installing what the bench compares with into build/pyinfra"
	@python3 -m venv build/pyinfra
	@build/pyinfra/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

bench-converge: venv build/pyinfra/.done ## site.yml without a change beside pyinfra, on labs of 8 and of 2 hosts (BEFORE=commit: that one, too); wants a quiet machine
	@$(PY) tests/bench/converge.py $(ARGS)

bench-loading: venv ## how long clients wait while another model loads, on two bare servers of Triton; wants a quiet machine
	@$(PY) tests/bench/loading.py

test-mutants: venv ## seed defects one at a time; each must turn a test red
	@$(PY) tests/mutants.py

clean: ## remove what was built; the lab has to be down
	@rm -rf build .venv .mypy_cache .ruff_cache .pytest_cache .ansible

.PHONY: help venv core demo lab lab-base lab-down converge status check lint changelog lint-models lint-corpus unit faults browser transfers packages report-test report-image molecule molecule-default molecule-production molecule-serving molecule-models molecule-runfile molecule-cores soak sanity sanity-newest test-quick test bench-serving bench-models bench-converge bench-loading test-heavy test-mutants clean
