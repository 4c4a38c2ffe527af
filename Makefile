# Everything runs in a virtual environment that `make install` makes.
PYTHON ?= python3
VENV ?= .venv
STACK ?= maintained
ARGS ?=

VENV_PY = "$(VENV)/bin/python"
DIGITS = configs/digits/mask_rcnn_wf_t_digits.py
WORK_DIR = work_dirs/mask_rcnn_wf_t_digits

.PHONY: help install demo compare test lint clean

help:
	@echo 'make install  the environment, about 15 minutes the first time'
	@echo 'make demo     train, test and draw Mask R-CNN on generated images'
	@echo 'make compare  WeightFormer-T beside DeiT-T on them, an hour'
	@echo 'make test     the tests; ARGS="-k name" goes to pytest'
	@echo 'make lint     style checks'
	@echo 'make clean    remove what builds and tests left'
	@echo
	@echo 'PYTHON=$(PYTHON)  the interpreter, 3.10 or newer'
	@echo 'VENV=$(VENV)  where the environment goes'
	@echo 'STACK=$(STACK)  the OpenMMLab packages: maintained or original'

install:
	@command -v "$(PYTHON)" >/dev/null || { echo 'PYTHON=$(PYTHON) is not' \
	    'there; name a Python, 3.10 or newer' >&2; exit 1; }
	@exec "$(PYTHON)" .dev_scripts/install.py --venv "$(VENV)" --stack "$(STACK)"

demo: install
	$(VENV_PY) tools/dataset_converters/digits.py data/digits
	$(VENV_PY) tools/train.py $(DIGITS)
	$(VENV_PY) tools/test.py $(DIGITS) "$$(cat $(WORK_DIR)/last_checkpoint)" \
	    --show-dir "$(CURDIR)/$(WORK_DIR)/predictions"
	$(VENV_PY) tools/visualization/montage.py $(WORK_DIR)/predictions \
	    $(WORK_DIR)/predictions.jpg
	@echo
	@echo 'Dataset, with a sheet of samples:  data/digits/contact_sheet.png'
	@echo 'Logs and checkpoints:              $(WORK_DIR)'
	@echo 'Ground truth beside predictions:   $(WORK_DIR)/predictions'
	@echo 'Some of them on a sheet:           $(WORK_DIR)/predictions.jpg'

compare: install
	$(VENV_PY) tools/dataset_converters/digits.py data/digits
	$(VENV_PY) tools/analysis_tools/compare.py $(ARGS)

test: install
	$(VENV_PY) -m pytest $(ARGS)

lint: install
	$(VENV_PY) -m flake8
	$(VENV_PY) -m isort --check-only --diff .
	$(VENV_PY) -m yapf --diff --recursive --exclude .venv .

clean:
	rm -rf build dist *.egg-info .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
