# `make help` lists the commands.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# With CORE=2.21, lint, unit tests and ansible-test run on ansible-core 2.21, in a separate Python environment (tests/cores.py).
VENV ?= $(if $(CORE),build/cores/$(CORE),.venv)
# The Python that creates the environment. It is the system's Python if this has the same version as python3, because a Python built by pyenv
# is ten percent slower. It is never the Python of an environment, because `make venv` may recreate this environment.
VERSION_OF := -c 'import ensurepip, sys; print(*sys.version_info[:2])' 2>/dev/null
PYTHON ?= $(shell [ "$$(/usr/bin/python3 $(VERSION_OF))" = "$$(python3 $(VERSION_OF))" ] && echo /usr/bin/python3 \
  || python3 -c 'import sys; print(sys._base_executable)')
PY := $(VENV)/bin/python
BIN := $(VENV)/bin
HOSTS ?= 2
LAB ?= lab
export HOSTS LAB
# Python writes bytecode files even if the caller's environment disables them, because Ansible then starts in half the time.
export PYTHONDONTWRITEBYTECODE :=
# With PYTHONUNBUFFERED, Python would read a module from its standard input byte by byte, which takes half a second for each local task.
export PYTHONUNBUFFERED :=
# Scenarios and playbooks use the tools and the collection of this checkout, even if others are installed on the machine.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
INVENTORY := inventories/lab

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

venv: $(if $(CORE),core,$(VENV)/.done) ## create the Python environment with the pinned tools (CORE=2.21: with ansible-core 2.21)
core:
	@python3 tests/cores.py --install $(if $(filter-out file,$(origin PYTHON)),--python "$(PYTHON)") $(CORE)
# Pip compiles no bytecode, because most of the modules belong to collections that no program imports. Python compiles the others when they are
# first imported.
$(VENV)/.done: requirements.txt requirements-dev.txt
	@echo "make: installing the pinned tools into $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/pip install --quiet --no-compile --disable-pip-version-check "$$(grep '^pip==' requirements-dev.txt)"
	@$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -r requirements-dev.txt
	@touch $@

demo: ## set up two lab hosts that recognize handwritten digits, on a bare machine
	@$(MAKE) --no-print-directory --jobs=2 venv lab-base
	@$(BIN)/python lab/demo.py

# This target needs no Python environment, so `make demo` runs it while pip installs the environment.
lab-base:
	@python3 lab/lab.py base

lab: venv ## start a lab of HOSTS=2 hosts
	@$(PY) lab/lab.py up

lab-down: venv ## stop and remove the lab
	@$(PY) lab/lab.py down

converge: venv ## run site.yml on the lab (ARGS=--check ...)
	@$(BIN)/ansible-playbook -i $(INVENTORY) playbooks/site.yml $(ARGS)

status: venv ## run status.yml on the lab, which shows the differences (ARGS=...)
	@$(BIN)/ansible-playbook -i $(INVENTORY) playbooks/status.yml $(ARGS)

check: venv ## run check.yml on the lab, which proves every server by inference (ARGS=...)
	@$(BIN)/ansible-playbook -i $(INVENTORY) playbooks/check.yml $(ARGS)

lint: venv ## run ruff, mypy, yamllint and ansible-lint (production); check changelog fragments, generated docs and plain words
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(PY) tests/attributes.py
	@$(BIN)/yamllint --strict .
	@$(BIN)/ansible-lint --offline --strict
	@$(BIN)/antsibull-changelog lint
	@$(PY) tests/docs.py --check
	@$(PY) tests/words.py

changelog: venv ## write CHANGELOG.md from changelogs/fragments, for the version in galaxy.yml
	@$(BIN)/antsibull-changelog release --update-existing --version "$$(sed -n 's/^version: //p' galaxy.yml)"

UNIT_PROGRAMS := rsync rclone haproxy jsonnet prometheus prometheus-node-exporter
unit-packages: ## install rsync, rclone, HAProxy, jsonnet, Prometheus and node exporter if they are missing
	@if ! PATH=$$PATH:/usr/sbin command -v $(UNIT_PROGRAMS) | wc -l | grep -qx $(words $(UNIT_PROGRAMS)); then \
	  echo "make: installing $(UNIT_PROGRAMS) for the unit tests"; \
	  apt-get update -qq; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(UNIT_PROGRAMS) >/dev/null; \
	fi

unit: venv ## run the unit tests
	@$(MAKE) --no-print-directory unit-packages
	@$(PY) -m pytest --junit-xml=build/log/unit.xml

lint-models: venv ## lint the Triton repository REPO=dir for the release row RELEASE=24.01 (ARGS=--json ...)
	@PYTHONPATH=collections $(PY) -m ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint \
	  $(or $(REPO),$(error REPO=dir names the repository to lint)) $(if $(RELEASE),--release $(RELEASE)) $(ARGS)

lint-corpus: venv ## load the models of tests/lint_corpus in real Triton servers again, and compare the linter with the servers
	@PYTHONPATH=collections $(PY) tests/lint_corpus/ask.py

faults: venv ## test faults of models on three Triton servers under load, without hosts of a lab (docs/reliability.md)
	@began=$$SECONDS; $(PY) -m pytest tests/faults --junit-xml=build/log/faults.xml; echo "faults: $$((SECONDS - began)) s"

browser: ## install Chromium and its driver if they are missing
	@if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then \
	  echo "make: installing Chromium for the tests of the report"; \
	  apt-get update -qq; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null; \
	fi

report-test: venv ## test the report in a browser
	@$(MAKE) --no-print-directory unit-packages
	@$(MAKE) --no-print-directory browser
	@$(PY) -m pytest tests/report --junit-xml=build/log/report-test.xml

report-image: venv browser unit-packages ## draw docs/images/report.png and charts.png from the data of an invented fleet
	@$(PY) tests/report/image.py docs/images/report.png docs/images/charts.png

molecule: molecule-default molecule-production molecule-serving molecule-models molecule-runfile molecule-rollout molecule-monitoring ## run all scenarios on labs: converge and change, docs/production.md, every kind of model, the three model control modes, current drivers, rollouts under traffic, alerts of faults
molecule-default molecule-production molecule-serving molecule-models molecule-runfile molecule-rollout molecule-monitoring: molecule-%: venv
	@tests/molecule.sh $*

molecule-cores: venv ## run the scenario `default` on each supported ansible-core (CORES="2.21"; not in `make test`)
	@$(PY) tests/cores.py $(CORES)

soak: venv ## kill KILLS=70 runs at random times under load, on a separate lab; the results are in build/bench/kills.json
	@SOAK_KILLS=$(or $(KILLS),70) tests/molecule.sh models

sanity: venv ## run ansible-test sanity on the files of the collection's archive (ARGS="--test validate-modules" ...)
	@$(PY) tests/sanity/run.py $(ARGS)

sanity-newest: venv ## run ansible-test sanity with the newest ansible-core, in a Debian 13 that debootstrap creates
	@$(PY) tests/sanity/newest.py $(ARGS)

test-quick: lint unit ## run lint and the unit tests

# The packages of the unit tests are installed before the base image of the lab, because both use apt. The browser is installed by the last
# lane, when no other lane uses apt.
packages: unit-packages
	@$(MAKE) --no-print-directory lab-base

# A lane is a target of `make test`. Six lanes run at the same time, because each of them waits now and then. The longest lanes start first and
# have priority. Lanes without a lab run while the images of the lab are built.
LANES := molecule-default molecule-serving molecule-models molecule-runfile molecule-production molecule-rollout molecule-monitoring unit faults lint report-test
test: ## run all tests; the output of each lane (target) is in build/log
	@rm -f build/log/lanes
# The output ends with the duration and the error of each lane, because a CI system may keep only the end of the output.
	@code=0; $(MAKE) --no-print-directory --jobs=6 --keep-going $(LANES:%=lane-%) || code=$$?; \
	  echo "test: all lanes:"; cat build/log/lanes; exit $$code
$(LANES:%=lane-%): venv
lane-unit: unit-packages
$(filter-out lane-unit lane-lint,$(LANES:%=lane-%)): packages
GIVE_WAY := lint molecule-production molecule-runfile molecule-rollout
$(GIVE_WAY:%=lane-%): PRIORITY := nice -n 5
$(GIVE_WAY:%=lane-%): export LAB_CPU_SHARES := 512
# The longest lanes with a lab have the highest priority.
lane-molecule-serving: PRIORITY := nice -n -4
lane-molecule-serving: export LAB_CPU_SHARES := 2048
lane-%:
	@$(PRIORITY) tests/lane.sh $* $(MAKE) --no-print-directory $*

build/heavy/.done: tests/heavy/requirements.txt
	@echo "make: installing the packages of the heavy tests into build/heavy"
	@python3 -m venv build/heavy
	@build/heavy/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

test-heavy: build/heavy/.done ## run tests with large downloads: PyTorch models, DALI (not in `make test`)
	@build/heavy/bin/python -m pytest tests/heavy

bench-serving: venv ## compare the speed of serving rbln models with its targets (ARGS="--only memory" ...); needs a quiet machine
	@PYTHONPATH=lab:lab/models:collections $(PY) tests/bench/serving.py $(ARGS)

bench-models: venv ## compare the duration of a change of models with its floor (the time of the unavoidable work): ten models, 2 GiB, 4 hosts of a lab; needs a quiet machine
	@$(PY) tests/bench/models.py $(ARGS)

build/pyinfra/.done: tests/bench/requirements.txt
	@echo "make: installing pyinfra for the comparison of the bench into build/pyinfra"
	@python3 -m venv build/pyinfra
	@build/pyinfra/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

bench-converge: venv build/pyinfra/.done ## compare site.yml without a change with pyinfra, on labs of 8 and 2 hosts (BEFORE=commit: also measure that commit); needs a quiet machine
	@$(PY) tests/bench/converge.py $(ARGS)

bench-scale: venv ## measure CPU seconds and memory of the controller for 50, 200 and 1,000 simulated hosts (BEFORE=commit: also measure that commit); needs a quiet machine
	@$(PY) tests/bench/scale.py $(ARGS)

bench-rollout: venv ## count the failed requests of clients while a fleet of 4 hosts behind a load balancer changes (ARGS="--only model" ...); needs a quiet machine
	@PYTHONPATH=tests/faults $(PY) tests/bench/rollout.py $(ARGS)

bench-alerts: venv ## measure the seconds from a fault to its alert in Prometheus and at a receiver, on a lab of 2 hosts (ARGS="--only kill_stub" ...); needs a quiet machine
	@PYTHONPATH=tests/faults:tests/monitoring $(PY) tests/bench/alerts.py $(ARGS)

bench-loading: venv ## measure the latency of clients while another model loads, on two Triton servers; needs a quiet machine
	@$(PY) tests/bench/loading.py

test-mutants: venv unit-packages ## insert one defect at a time; the tests of each defect have to fail
	@$(PY) tests/mutants.py

clean: ## remove all build output; the lab has to be down
	@rm -rf build .venv .mypy_cache .ruff_cache .pytest_cache .ansible

.PHONY: help venv core demo lab lab-base lab-down converge status check lint changelog lint-models lint-corpus unit faults browser unit-packages packages report-test report-image molecule molecule-default molecule-production molecule-serving molecule-models molecule-runfile molecule-rollout molecule-monitoring molecule-cores soak sanity sanity-newest test-quick test bench-serving bench-models bench-converge bench-scale bench-rollout bench-alerts bench-loading test-heavy test-mutants clean
