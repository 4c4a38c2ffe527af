# Everything runs in a virtual environment that `make install` makes.
PYTHON ?= python3
VENV ?= .venv
STACK ?= maintained
LOCKED ?=
ARGS ?=

VENV_PY = "$(VENV)/bin/python"
CLASSIFIER = configs/digits/wf_t_digits.py
DIGITS = configs/digits/mask_rcnn_wf_t_digits.py
WORK_DIR = work_dirs/mask_rcnn_wf_t_digits
BENCHMARK = $(VENV_PY) tools/analysis_tools/benchmark.py
BESIDE_LITERAL = $(BENCHMARK) --sizes 224 512 1024 --batch 1 8 --budget 3 \
    --dtype float32 bfloat16 \
    --title 'WeightFormer beside its formulas as published'
TEST_LOOP = $(VENV_PY) tools/analysis_tools/benchmark_test_loop.py --size 512 \
    --num-images 4 --rounds 3
TASKS = configs/digits
ABLATE = work_dirs/ablate
ERF = $(VENV_PY) tools/visualization/vis_erf.py --size 256 --num-images 50
PUBLISHED = $(ABLATE)/published_0/wf_ablation_digits.py
PREDICTED = $(VENV_PY) tools/visualization/vis_dynamic_weights.py --num-images 100

GENERATE = work_dirs/generate
SAMPLE = $(VENV_PY) tools/visualization/sample.py
TEN = --classes 0 1 2 3 4 5 6 7 8 9 --num-per-class 10

.PHONY: help install demo compare ablate generate benchmark test fuzz faults \
    lint clean

help:
	@echo 'make install  the environment, about 15 minutes the first time'
	@echo 'make demo     train a classifier and from it Mask R-CNN, on generated'
	@echo '              images, test it and draw its predictions,'
	@echo '              45 minutes on one core'
	@echo 'make compare  WeightFormer-T beside DeiT-T on them, an hour'
	@echo 'make ablate   placements and strategies of prediction on them, with'
	@echo '              receptive fields and predicted weights, into'
	@echo '              docs/ablation, an hour'
	@echo 'make generate  WeightFormerDiT beside DiT as generators of digits,'
	@echo '              into docs/generation, 40 minutes on 2 cores'
	@echo 'make benchmark  speed and memory beside DeiT-T, into docs/benchmark,'
	@echo '              20 minutes'
	@echo 'make test     the tests; ARGS="-k name" goes to pytest'
	@echo 'make fuzz     10,000 random models and inputs, half an hour'
	@echo 'make faults   kill trainings and processes, and train for long'
	@echo 'make lint     style checks'
	@echo 'make clean    remove what builds and tests left'
	@echo
	@echo 'PYTHON=$(PYTHON)  the interpreter, 3.10 or newer'
	@echo 'VENV=$(VENV)  where the environment goes'
	@echo 'STACK=$(STACK)  the OpenMMLab packages: maintained or original'
	@echo 'LOCKED=1  the very releases that were tested, checked by hash'

install:
	@command -v "$(PYTHON)" >/dev/null || { echo 'PYTHON=$(PYTHON) is not' \
	    'there; name a Python, 3.10 or newer' >&2; exit 1; }
	@exec "$(PYTHON)" .dev_scripts/install.py --venv "$(VENV)" --stack "$(STACK)" \
	    $(if $(LOCKED),--locked)

demo: install
	$(VENV_PY) tools/dataset_converters/digits.py data/digits
	$(VENV_PY) tools/train.py $(CLASSIFIER)
	$(VENV_PY) tools/train.py $(DIGITS) --cfg-options \
	    pretrained=work_dirs/wf_t_digits/epoch_5.pth
	$(VENV_PY) tools/test.py $(DIGITS) "$$(cat $(WORK_DIR)/last_checkpoint)" \
	    --show-dir "$(CURDIR)/$(WORK_DIR)/predictions"
	$(VENV_PY) tools/visualization/montage.py $(WORK_DIR)/predictions \
	    $(WORK_DIR)/predictions.jpg
	@echo
	@echo 'Dataset, with a sheet of samples:  data/digits/contact_sheet.png'
	@echo 'Classifier that it started from:   work_dirs/wf_t_digits'
	@echo 'Logs and checkpoints:              $(WORK_DIR)'
	@echo 'Ground truth beside predictions:   $(WORK_DIR)/predictions'
	@echo 'Some of them on a sheet:           $(WORK_DIR)/predictions.jpg'

compare: install
	$(VENV_PY) tools/dataset_converters/digits.py data/digits
	$(VENV_PY) tools/analysis_tools/compare.py $(ARGS)

ablate: install
	$(VENV_PY) tools/dataset_converters/digits.py data/digits
	$(VENV_PY) tools/analysis_tools/ablate.py --out docs/ablation $(ARGS)
	$(ERF) $(ABLATE)/none_0 $(ABLATE)/deit_0 $(ABLATE)/linear_static_0 \
	    $(ABLATE)/linear_gap_0 $(ABLATE)/linear_linear_0 \
	    $(ABLATE)/linear_nonlinear_0 $(ABLATE)/linear_deep_0 \
	    $(ABLATE)/published_0 --out docs/ablation/erf_linear.png \
	    --labels 'no dynamic block' DeiT static gap linear nonlinear deep \
	    bilateral
	$(ERF) $(ABLATE)/static_0 $(ABLATE)/conv_static_0 $(ABLATE)/conv_gap_0 \
	    $(ABLATE)/conv_amp_dir_0 $(ABLATE)/conv_conv_0 \
	    $(ABLATE)/published_0 --out docs/ablation/erf_conv.png \
	    --labels 'both static' static gap amp_dir conv adaptive
	$(PREDICTED) $(PUBLISHED) --out-dir docs/ablation/random
	$(PREDICTED) $(PUBLISHED) "$$(cat $(ABLATE)/published_0/last_checkpoint)" \
	    --out-dir docs/ablation/trained

generate: install
	$(VENV_PY) tools/dataset_converters/digits.py data/digits
	$(VENV_PY) tools/dataset_converters/digits.py data/digits_plain --size 32 \
	    --layouts imagenet --min-ease 1
	$(VENV_PY) tools/analysis_tools/generate.py --out docs/generation $(ARGS)
	$(SAMPLE) $(TASKS)/dit_wf_digits.py "$$(cat $(GENERATE)/dit_wf/last_checkpoint)" \
	    $(TEN) --out docs/generation/dit_wf.png
	$(SAMPLE) $(TASKS)/dit_digits.py "$$(cat $(GENERATE)/dit/last_checkpoint)" \
	    $(TEN) --out docs/generation/dit.png

benchmark: install
	$(BENCHMARK) wf_t deit_t deit_t_naive deit_t_windowed --profile 1024 \
	    --sizes 224 512 768 1024 1248 2048 4096 \
	    --title 'WeightFormer-T beside DeiT-T' --out-dir docs/benchmark/growth
	$(BESIDE_LITERAL) wf_t wf_t_literal --baseline wf_t_literal \
	    --out-dir docs/benchmark/wf_t_inference
	$(BESIDE_LITERAL) wf_s wf_s_literal --baseline wf_s_literal \
	    --out-dir docs/benchmark/wf_s_inference
	$(BESIDE_LITERAL) wf_t wf_t_literal --baseline wf_t_literal \
	    --mode train --dtype float32 --out-dir docs/benchmark/wf_t_train
	$(VENV_PY) tools/dataset_converters/digits.py data/digits_512 --size 512 \
	    --num-train 1 --num-val 8 --layouts coco ade
	$(TEST_LOOP) $(TASKS)/mask_rcnn_wf_t_digits.py \
	    $(TASKS)/mask_rcnn_deit_t_digits.py \
	    --out docs/benchmark/mask_rcnn.md --cfg-options \
	    test_dataloader.dataset.data_root=data/digits_512/coco \
	    test_evaluator.ann_file=data/digits_512/coco/annotations/instances_val2017.json
	$(TEST_LOOP) $(TASKS)/upernet_wf_t_digits.py \
	    $(TASKS)/upernet_deit_t_digits.py --out docs/benchmark/upernet.md \
	    --cfg-options test_dataloader.dataset.data_root=data/digits_512/ade

test: install
	$(VENV_PY) -m pytest $(ARGS)

fuzz: install
	$(VENV_PY) tests/fuzz/fuzz.py $(ARGS)

faults: install
	$(VENV_PY) tests/faults/kill.py
	$(VENV_PY) tests/faults/dead_process.py
	$(VENV_PY) tests/faults/long_run.py --dtype float32
	$(VENV_PY) tests/faults/long_run.py --dtype bfloat16

lint: install
	$(VENV_PY) -m flake8
	$(VENV_PY) -m isort --check-only --diff .
	$(VENV_PY) -m yapf --diff --recursive --exclude .venv .

clean:
	rm -rf build dist *.egg-info .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
