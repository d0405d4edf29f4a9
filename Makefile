# From a fresh clone, with only Python (>= 3.10) and make:
#   make quickstart   builds .venv, installs what the quickstart needs, trains it
#   make test         installs the rest as well, checks and tests everything
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LEAN := $(VENV)/.lean
READY := $(VENV)/.ready
SITE := $(VENV)/.docs

.PHONY: quickstart test check docs picture screenshots drill drill-slurm drill-meshes drill-ray drill-kubernetes accelerator measure clean

quickstart: $(LEAN)
	$(BIN)/drivetrain train quickstart

# Three workers on two cores: of the groups, which go first and to a worker each, some mostly wait, for a disk that
# stalls or a patience that ends. Compiled before: Pythons are started by the hundred, and some are told to keep no bytecode.
test: $(READY) check
	$(BIN)/python -m compileall -q src
	$(BIN)/python -m pytest -n 3 --dist loadgroup

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

# What training needs. torch first and by itself: where pip knows a CPU build of the pinned version it takes that one.
$(LEAN): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $(LEAN)

# What tests and checks need besides.
$(READY): $(LEAN)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs,tensorboard,hf,torchao,bitsandbytes,torchrec]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps torchrec
	touch $(READY)

# The pages of docs/ as a site, with the API's from docstrings: build/docs/index.html. A link that leads nowhere fails.
docs: $(SITE)
	$(BIN)/sphinx-build --builder html --fail-on-warning --keep-going --quiet docs build/docs

$(SITE): $(LEAN)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $(SITE)

# docs/architecture.svg: who imports whom, drawn from the code.
picture: $(READY)
	$(BIN)/python docs/picture.py

# docs/board/*.png: every page of the board, over two short runs that are trained for it (Debian: apt-get install chromium).
screenshots: $(READY)
	PYTHONPATH=tests $(BIN)/python docs/screenshots.py

# Every Python, laws by more examples than `make test` has time for, golden runs as a user starts them, every fault
# that can be tried here, then random kills: make drill MINUTES=15 SEED=0
MINUTES ?= 15
SEED ?= 0
drill: $(READY)
	DRILL=1 $(BIN)/python -m pytest tests/test_pythons.py tests/run/test_devices.py
	DRILL=1 $(BIN)/python -m pytest -m hypothesis
	PYTHONPATH=tests $(BIN)/python -m golden compare
	PYTHONPATH=tests $(BIN)/python -m drills --minutes $(MINUTES) --seed $(SEED)

# Jobs on a real Slurm that is started here (Debian: apt-get install slurm-wlm; as root), the slow faults too.
drill-slurm: $(READY)
	DRILL=1 $(BIN)/python -m pytest -o timeout=400 tests/launch/targets/test_slurm_jobs.py

# Every mesh with every optimizer, every way to keep weights, and what strikes them; `make test` has a sample of it.
drill-meshes: $(READY)
	DRILL=1 $(BIN)/python -m pytest -o timeout=900 tests/engine tests/run/test_mesh_table.py tests/run/test_mesh_tasks.py tests/run/test_tracing.py \
		tests/run/test_compiling.py
	PYTHONPATH=tests $(BIN)/python -m mutants
	PYTHONPATH=tests $(BIN)/python -m drills --only "kill sweep on meshes"
	PYTHONPATH=tests $(BIN)/python -m drills --only "kills on meshes" --minutes $(MINUTES) --seed $(SEED)

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

# Everything that needs a device, on all that torch finds here; without one in a reduced form: make accelerator ARGS='--list'
accelerator: $(READY)
	PYTHONPATH=benchmarks $(BIN)/python -m accelerator $(ARGS)

# Figures of the code, to put beside those of another version: make measure ARGS='--suite --install'
measure: $(READY)
	$(BIN)/python benchmarks/measure.py $(ARGS)

clean:
	rm -rf $(VENV) build src/*.egg-info
