# Each target sets itself up: `make demo` and `make test` work in a fresh clone with Python and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Test workers run beside each other, so each takes one thread.
WORKERS ?= 2

.PHONY: help install demo demo-det compare docs test test-fast test-original lint clean

help:
	@echo "make demo       train EANet on the embedded dataset, test it, draw its predictions"
	@echo "make demo-det   train Mask R-CNN on the embedded dataset, draw what it finds"
	@echo "make compare    the same budget for FCN and DANet, and a table of the three"
	@echo "make docs       build the site of the documentation into site/; a warning fails"
	@echo "make test       lint, build the site and run every test"
	@echo "make test-fast  the tests of two minutes, for after each change"
	@echo "make test-original  the stack check and the fast tests on mmsegmentation's original packages"
	@echo "make lint       ruff, and pyright on the layers, backbones and heads"
	@echo "make clean      remove the environment and everything that was made"

install: $(INSTALLED)

$(INSTALLED): setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e ".[mm,test]"
	@# opencv-python, which mmcv asks for, needs the system's libGL; a bare machine gets its twin.
	@$(BIN)/python -c "import cv2" 2>/dev/null || { \
		$(BIN)/python -m pip uninstall -q -y opencv-python; \
		$(BIN)/python -m pip install -q -c constraints.txt --force-reinstall --no-deps \
			opencv-python-headless; \
		$(BIN)/python -c "import cv2"; }
	@touch $@

demo: $(INSTALLED)
	$(BIN)/python tools/demo.py

demo-det: $(INSTALLED)
	$(BIN)/python tools/demo_det.py

compare: $(INSTALLED)
	$(BIN)/python tools/demo.py --compare --work-dir work_dirs/compare

# Reads the code without importing it. A broken link or anchor, a page outside the navigation and a
# missing docstring in the reference are warnings.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

test: lint docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=25

# Without the files that train, export or start processes (tests/conftest.py names them).
test-fast: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests -n $(WORKERS) --dist worksteal -q \
		-m "not slow and not distributed"

# The other set of packages that users have, in an environment of its own.
ORIGINAL := .venv-original
ORIGINAL_INSTALLED := $(ORIGINAL)/.installed

$(ORIGINAL_INSTALLED): setup.py
	$(PYTHON) -m venv $(ORIGINAL)
	$(ORIGINAL)/bin/python -m pip install --disable-pip-version-check -q \
		torch==2.13.0 -e ".[test-original]"
	@$(ORIGINAL)/bin/python -c "import cv2" 2>/dev/null || { \
		$(ORIGINAL)/bin/python -m pip uninstall -q -y opencv-python; \
		$(ORIGINAL)/bin/python -m pip install -q --force-reinstall --no-deps opencv-python-headless; }
	@touch $@

test-original: $(ORIGINAL_INSTALLED)
	OMP_NUM_THREADS=1 $(ORIGINAL)/bin/python tests/stack_check.py
	OMP_NUM_THREADS=1 $(ORIGINAL)/bin/python -m pytest -n $(WORKERS) --dist worksteal -q \
		tests/layers tests/decode_heads tests/backbones tests/segmentors tests/engine tests/checkpoint \
		-m "not slow and not distributed"
	OMP_NUM_THREADS=1 $(ORIGINAL)/bin/python -m pytest -q tests/engine/test_deterministic.py \
		tests/engine/test_finite_loss.py tests/engine/test_published_protocol.py \
		tests/engine/test_run_record.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

clean:
	rm -rf $(VENV) $(ORIGINAL) site work_dirs build dist *.egg-info mmseg_ext.egg-info .pytest_cache .ruff_cache
