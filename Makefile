# Each target installs what it needs: `make demo` and `make test` work in a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Two test workers run in parallel, with one thread each.
WORKERS ?= 2

.PHONY: help install demo demo-det compare docs test test-long test-fast test-original lint clean

help:
	@echo "make demo       train EANet on the generated dataset, test it, write a report"
	@echo "make demo-det   train Mask R-CNN on the generated dataset, draw its detections"
	@echo "make compare    train EANet, FCN and DANet with three seeds each, write a table with intervals"
	@echo "make docs       build the documentation in site/; a warning is an error"
	@echo "make test       lint, build the site and run the tests"
	@echo "make test-fast  run the fast tests, after each change"
	@echo "make test-long  train to the results that the docs promise, and try all cases of the other tests"
	@echo "make test-avx2  run the numerical tests with the instructions of older processors"
	@echo "make test-original  run the stack check and the fast tests on mmsegmentation's original packages"
	@echo "make lint       run ruff, pyright and import-linter"
	@echo "make clean      remove the environments and all generated files"

install: $(INSTALLED)

$(INSTALLED): setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e ".[mm,test]"
	@# mmcv requires opencv-python, which needs libGL. Without libGL, install the headless package.
	@$(BIN)/python -c "import cv2" 2>/dev/null || { \
		$(BIN)/python -m pip uninstall -q -y opencv-python; \
		$(BIN)/python -m pip install -q -c constraints.txt --force-reinstall --no-deps \
			opencv-python-headless; \
		$(BIN)/python -c "import cv2"; }
	@touch $@

demo: $(INSTALLED)
	$(BIN)/mmseg-ext train configs/ea_r18_shapes.py
	$(BIN)/mmseg-ext test configs/ea_r18_shapes.py work_dirs/ea_r18_shapes/iter_1300.pth --tta
	$(BIN)/mmseg-ext report work_dirs/ea_r18_shapes

demo-det: $(INSTALLED)
	$(BIN)/mmseg-ext train configs/detection/mask_rcnn_rmt_shapes.py
	$(BIN)/mmseg-ext test configs/detection/mask_rcnn_rmt_shapes.py \
		work_dirs/mask_rcnn_rmt_shapes/iter_500.pth --show-dir work_dirs/mask_rcnn_rmt_shapes/detections

compare: $(INSTALLED)
	$(BIN)/mmseg-ext compare configs/ea_r18_shapes.py configs/fcn_r18_shapes.py configs/danet_r18_shapes.py

# Reads the code without importing it. Broken links and anchors, pages outside the navigation and
# missing docstrings in the reference are warnings, and warnings fail.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

test: $(INSTALLED)
	@# The site is built while pyright runs.
	$(MAKE) --jobs 2 --output-sync lint docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=25

# Short runs and a part of the cases in `make test` notice most faults earlier.
test-long: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q -m long

# The instructions of a processor without AVX-512, on any processor: sums differ by rounding.
NUMERICAL := layers decode_heads segmentors backbones detection cost engine/test_golden_losses.py
test-avx2: $(INSTALLED)
	OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 \
		$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q \
		$(NUMERICAL:%=tests/%) -m "not distributed and not long" -k "not compile and not export"

# Without the tests that train, export or start processes (listed in tests/conftest.py).
test-fast: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests -n $(WORKERS) --dist worksteal -q \
		-m "not slow and not distributed and not long"

# mmsegmentation's original packages, in a separate environment.
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

# The folders whose fast tests run there.
FOLDERS := layers decode_heads backbones segmentors engine checkpoint durable evaluation inspection converters
FOLDERS := $(FOLDERS:%=tests/%)
COLLECT := $(ORIGINAL)/bin/python -m pytest --collect-only -qq --continue-on-collection-errors

test-original: $(ORIGINAL_INSTALLED)
	OMP_NUM_THREADS=1 $(ORIGINAL)/bin/python tests/stack_check.py
	OMP_NUM_THREADS=1 $(ORIGINAL)/bin/python -m pytest -n $(WORKERS) --dist worksteal -q \
		$(FOLDERS) -m "not slow and not distributed and not long"
	@echo "Tests that this leaves out, by folder:"
	@{ $(COLLECT) $(FOLDERS) -m "slow or distributed or long"; $(COLLECT) tests $(FOLDERS:%=--ignore=%); } | \
		awk -F '[/:]' '/^tests.*: [0-9]+$$/ { left[NF > 3 ? $$2 : "tests"] += $$NF } \
			END { for (folder in left) print left[folder], folder }' | sort -k 2

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-cache

clean:
	rm -rf $(VENV) $(ORIGINAL) site work_dirs build dist *.egg-info mmseg_ext.egg-info .pytest_cache .ruff_cache
