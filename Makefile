# `make train` and `make test` do everything, set-up included. Each stamp in .venv stands for a finished step, so a
# second call repeats nothing: a changed source reinstalls the package alone, in seconds; a changed setup.py or
# constraints.txt brings the dependencies up to date. Another interpreter: make PYTHON=python3.12 …

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CONSTRAINED := --constraint constraints.txt --no-warn-script-location
CHECKOUT_PTH = $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/checkout.pth
FOLDERS := blobfeed cluster layers readers sources supplies tools trainer watching workers
# The directories are among them since a deleted file leaves no other trace.
SOURCES := $(shell find $(FOLDERS) -name __pycache__ -prune -o \( -type d -o -name '*.py' -o -name '*.pyi' -o -name '*.c' -o -name py.typed \) -print)

# The tests are for what users get: the installed package, and not a checkout that happens to be on the path.
unexport PYTHONPATH PYTHONHOME
# Each process of pytest compiles all tests, unless it may keep what it has compiled.
unexport PYTHONDONTWRITEBYTECODE
.DELETE_ON_ERROR:
.NOTPARALLEL:  # steps share build/ and the environment
.PHONY: help train test test-all alone test-lowest test-cloud test-wheel dist test-cuda quick faults bench docs lint types types-all pytest format clean distclean

help:
	@echo 'make train      train a small net on the digits through MultiProcessInputLayer'
	@echo 'make test       the checks of a change: format, lint, types, tests'
	@echo 'make quick      only the tests of pure code, which start no process and import no framework: seconds'
	@echo 'make test-all   the rest: frameworks, documents, examples, crashes, tests that take minutes, types of tests'
	@echo 'make test-lowest the tests, with the oldest versions of libraries that setup.py accepts'
	@echo 'make test-cloud the tests of object storage, with servers of vendors: needs npm, nginx and a network'
	@echo 'make test-wheel the tests of layers and of BatchReader, with the built wheel and without the folders it is built from'
	@echo 'make dist       the sdist and a wheel for this machine, in dist/, checked by twine'
	@echo 'make test-cuda  the tests that need a GPU, under torch'"'"'s race detector, and the table of benchmarks.delivery'
	@echo 'make faults     kill, crash, stop and corrupt whatever there is, and a figure for each: about half an hour'
	@echo 'make bench      blobfeed and other loaders, side by side: about an hour'
	@echo 'make docs       the site of the documents, into site/'
	@echo 'make format     let ruff rewrite what it can'
	@echo 'make clean      remove caches and build outputs; make distclean: the environment too'

train: $(VENV)/package
	$(BIN)/blobfeed train --solver prototxt_examples/digits/solver.prototxt

test: lint types pytest

# What `test` leaves out, and each property of hypothesis with all its examples; continuous integration runs both.
test-all: types-all alone
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 20 -m 'slow or integration or hypothesis' \
		--hypothesis-profile whole -o faulthandler_timeout=900 -o timeout=1800

# Each in a process of its own: tests/readers/conftest.py says why. pytest ends with 5 where the framework is missing.
ALONE := $(wildcard tests/readers/test_jax_*.py tests/readers/test_keras_*.py tests/readers/test_tensorflow_*.py)
alone: $(VENV)/package $(VENV)/test-dependencies
	for file in $(ALONE); do $(BIN)/pytest -m 'slow or not slow' $(PYTEST_OPTIONS) $$file || [ $$? = 5 ] || exit 1; done

# In an environment of its own. Old libraries beside new ones warn of each other, so that warnings are no errors there.
test-lowest:
	mkdir -p $(VENV)/lowest
	$(PYTHON) tests/support/lowest.py > $(VENV)/lowest/constraints.txt
	$(MAKE) VENV=$(VENV)/lowest CONSTRAINED='--constraint $(VENV)/lowest/constraints.txt --no-warn-script-location' \
		PYTEST_OPTIONS='-W default -m "not slow" --deselect tests/test_package.py::$(PINNED)' pytest alone

PINNED := test_every_dependency_is_pinned_at_the_version_that_is_tested

# A server that is missing is skipped, and named at the end.
test-cloud: $(VENV)/package $(VENV)/test-dependencies $(VENV)/cloud/installed
	$(BIN)/pytest -n 2 -m 'slow or not slow' -rs tests/sources/cloud

$(VENV)/cloud/installed:
	npm install --no-fund --no-audit --prefix $(VENV)/cloud azurite@3 s3rver@3
	@touch $@

# The tests lie in a folder without the product beside them, so a module that the wheel lacks is missing here.
test-wheel: $(VENV)/test-dependencies
	rm -rf build $(VENV)/wheel $(VENV)/package
	$(BIN)/python -m build --no-isolation --wheel --outdir $(VENV)/wheel .
	$(PIP) -qq install --no-deps --force-reinstall $(VENV)/wheel/*.whl
	cp -r tests benchmarks docs prototxt_examples pyproject.toml $(VENV)/wheel/
	echo '$(CURDIR)/$(VENV)/wheel' > $(CHECKOUT_PTH)
	cd $(VENV)/wheel && ../bin/pytest -n 2 tests/layers tests/readers/test_batch_reader.py tests/readers/test_published_bytes.py

# The files of a release. twine has an environment of its own.
dist: $(VENV)/test-dependencies
	rm -rf build dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(PYTHON) -m venv $(VENV)/twine
	$(VENV)/twine/bin/pip -qq install twine
	$(VENV)/twine/bin/twine check --strict dist/*

# Without a device each test is skipped with the reason, and the table has no rows of one. There torch's race detector
# is left out, since under it a torch for CPUs fails at its first operation.
test-cuda: $(VENV)/package $(VENV)/test-dependencies
	env $$($(BIN)/python -c 'import torch; print("TORCH_CUDA_SANITIZER=1" * torch.cuda.is_available())') \
		$(BIN)/pytest -m cuda -rs
	$(BIN)/python -P -m benchmarks.delivery

# tests/support/purity.py says which these are: those of whole rooms, and of files that say so themselves.
quick: $(VENV)/package $(VENV)/test-dependencies
	$(BIN)/pytest -n 2 -m 'pure and not slow' tests/trainer/prototxt tests/sources tests/supplies tests/watching tests/workers

faults: $(VENV)/package $(VENV)/test-dependencies
	$(BIN)/python -P -m tests.faults

bench: $(VENV)/package $(VENV)/test-dependencies
	-$(BIN)/python -m benchmarks --make-peers
	$(BIN)/python -m benchmarks --output benchmarks/figures.md
	$(BIN)/python -m benchmarks.published

docs: $(VENV)/package $(VENV)/docs-dependencies
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo 'open site/index.html'

lint: $(VENV)/test-dependencies
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# mypy looks into the working directory first, and at the top of the checkout it would find ./blobfeed there, without
# its subpackages. So it works in a directory from which only the folders that are not installed can be seen.
types: $(VENV)/package $(VENV)/test-dependencies
	rm -rf $(VENV)/types
	mkdir $(VENV)/types
	ln -s ../../tests ../../benchmarks ../../prototxt_examples $(VENV)/types/
	cd $(VENV)/types && ../bin/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache $(TYPED)

TYPED := -p blobfeed -p prototxt_examples
types-all: TYPED += -p tests -p benchmarks
types-all: types

# Three at a time, file by file: much of the time is spent waiting, for a process to start or to be seen dead. In the
# order of tests/conftest.py, which begins with the files that take longest; xdist's own begins with those of most tests.
pytest: $(VENV)/package $(VENV)/test-dependencies
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --durations 20 -m 'not slow and not integration' \
		$(PYTEST_OPTIONS)

format: $(VENV)/test-dependencies
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'blobfeed needs Python 3.11 or later, and $(PYTHON) is older or missing: name another, as in make PYTHON=python3.12 …' >&2; exit 1; }
	@echo 'Making the environment $(VENV)'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# $(call install,WHAT FOR,HOW LONG,EXTRA): the package with an extra, a dot for every second that it takes. What pip has
# to say goes to a file, and is shown if it fails. In the background a program ignores Ctrl-C, so it is killed.
define install
	@rm -rf build
	@$(PIP) -qq install $(CONSTRAINED) setuptools wheel
	@printf '%s ' 'Installing $(1) into $(VENV), $(2):'
	@$(PIP) install $(CONSTRAINED) --no-build-isolation '.[$(3)]' >$(VENV)/pip.log 2>&1 & pip=$$!; \
		trap 'kill $$pip; exit 130' INT TERM; \
		while kill -0 $$pip 2>/dev/null; do printf .; sleep 1; done; \
		wait $$pip || { echo ' failed'; cat $(VENV)/pip.log >&2; exit 1; }; \
		echo ' done'
	@touch $@
endef

$(VENV)/train-dependencies: $(VENV)/python constraints.txt setup.py
	$(call install,what blobfeed and its trainer need,about a minute once,torch)

$(VENV)/test-dependencies: $(VENV)/train-dependencies
	$(call install,what the tests need,one or two minutes once,test)

$(VENV)/docs-dependencies: $(VENV)/train-dependencies
	$(call install,what the site needs,about half a minute once,docs)

# setuptools packs whatever an earlier build left in build/, deleted modules too: so that goes first.
# The path file puts the checkout behind site-packages: tests.support and benchmarks can be imported in every process
# of this environment, and blobfeed is still the installed one.
$(VENV)/package: $(VENV)/train-dependencies $(SOURCES)
	@rm -rf build
	@$(PIP) -qq install --no-deps --no-build-isolation --force-reinstall .
	@echo '$(CURDIR)' > $(CHECKOUT_PTH)
	@touch $@

clean:
	rm -rf build site dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
