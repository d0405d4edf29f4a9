# From a fresh clone, with only Python (>= 3.10) and make:
#   make quickstart   builds .venv, installs, trains the quickstart recipe
#   make test         builds the same, checks and tests everything
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: quickstart test check drill drill-slurm drill-ray drill-kubernetes clean

quickstart: $(READY)
	$(BIN)/drivetrain train quickstart

test: $(READY) check
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

# torch first and by itself: where pip knows a CPU build of the pinned version it takes that one.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,tensorboard,hf,torchao,bitsandbytes]'
	touch $(READY)

# Every fault that can be tried here, then random kills: make drill MINUTES=15 SEED=0
MINUTES ?= 15
SEED ?= 0
drill: $(READY)
	PYTHONPATH=tests $(BIN)/python -m drills --minutes $(MINUTES) --seed $(SEED)

# Jobs on a real Slurm that is started here (Debian: apt-get install slurm-wlm; as root), the slow faults too.
drill-slurm: $(READY)
	DRILL=1 $(BIN)/python -m pytest -o timeout=400 tests/launch/targets/test_slurm_jobs.py

# Jobs on a real Ray of two nodes on this machine. Ray has an environment of its own, which sees this one's packages.
RAY := benchmarks/.envs/ray
drill-ray: $(READY)
	$(BIN)/python -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet --constraint constraints.txt 'ray[default]==2.60.0'
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
		> "$$($(RAY)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/project.pth"
	DRIVETRAIN_RAY=$(CURDIR)/$(RAY)/bin/python $(BIN)/python -m pytest tests/launch/targets/test_ray_jobs.py

# Jobs in real pods of a Kubernetes of two nodes on this machine (as root, nobody else's; Debian 12: apt-get install
# etcd-server containerd runc containernetworking-plugins busybox-static debootstrap golang-1.19-go iproute2
# golang-github-modern-go-reflect2-dev, and a kubectl). The first time its programs are built: half an hour on two cores.
KUBERNETES := benchmarks/.envs/kubernetes
drill-kubernetes: $(READY)
	PYTHONPATH=tests $(BIN)/python -m kubernetes_lab.build $(KUBERNETES)
	DRIVETRAIN_KUBERNETES=$(CURDIR)/$(KUBERNETES) $(BIN)/python -m pytest tests/launch/targets/test_kubernetes_jobs.py

clean:
	rm -rf $(VENV) build src/*.egg-info
