# Every command sets up .venv first, if that has not been done; nothing else has to be installed by hand.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help book test lab serve lint notebooks reproduce bench mutants lock clean

PYTHON ?= python3
PORT ?= 8000
READY := .venv/ready
PY := .venv/bin/python
MUTMUT := mutmut==3.8.1
INSTALL := -m pip --disable-pip-version-check install
STARTED := $(shell date +%s)

# On a busy machine torch's threads, waiting actively for each other, slow everything down many times over.
export GOMP_SPINCOUNT ?= 10000
# A reader's own packages and settings must not reach the book.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 18

book: $(READY) ## execute every chapter and build the HTML pages
	@$(PY) tools/book.py
	@echo "make book took $$(( $$(date +%s) - $(STARTED) )) s"

test: $(READY) lint ## run all tests: library, chapters with their outputs, built pages
	@$(PY) -m pytest
	@echo "make test took $$(( $$(date +%s) - $(STARTED) )) s"

lint: $(READY) ## check the style of the Python files
	@$(PY) -m ruff check --quiet && echo "Style: nothing to complain about"

lab: $(READY) ## open the chapters in Jupyter Lab
	@$(PY) -m jupyterlab book

serve: book ## build the book and show it on http://localhost:8000 (PORT=...)
	@echo "The book is on http://localhost:$(PORT)  (Ctrl-C ends this)"
	@$(PY) -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

notebooks: $(READY) ## execute every book/*.md chapter and write its .ipynb twin
	@$(PY) tools/notebooks.py execute --all

reproduce: $(READY) ## run the long sweeps whose results the book ships (hours; ONLY="NAME ..." for some of them)
	@$(PY) -m assoc reproduce $(ONLY)

bench: $(READY) ## measure time and memory beside the literal formulas (3 minutes on two free cores)
	@$(PY) tools/bench.py

# One thread: mutmut forks, and what is left of OpenMP's threads in a fork would wait for ever.
mutants: $(READY) ## put some 1500 small errors into the formulas: which does no test notice? (5 minutes of CPU time)
	@$(PY) $(INSTALL) --quiet $(MUTMUT) --constraint requirements.lock
	@rm -rf _build/mutants && mkdir -p _build/mutants
	@cp -R lib _build/mutants/src && cp -R tests pyproject.toml _build/mutants
	@cd _build/mutants && OMP_NUM_THREADS=1 ../../.venv/bin/mutmut run && ../../.venv/bin/mutmut results
	@echo "make mutants took $$(( $$(date +%s) - $(STARTED) )) s"

lock: $(READY) ## resolve requirements.txt anew and write requirements.lock
	@$(PY) tools/lock.py

clean: ## remove what was built (.venv stays)
	rm -rf _build

# The marker is written last, and removed first: an installation that was cut short is made anew.
$(READY): requirements.txt requirements.lock pyproject.toml
	@command -v "$(PYTHON)" > /dev/null || { echo "error: there is no $(PYTHON) here; install Python 3.11 or newer, or name one: make PYTHON=..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is older than 3.11; install a newer Python, or name one: make PYTHON=..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2> /dev/null || { echo "error: $(PYTHON) cannot make virtual environments; install its venv package (python3-venv on Debian and Ubuntu)" >&2; exit 1; }
	@echo "Installing the pinned packages into .venv (the first time this takes a few minutes) ..."
	@if [ -e $(READY) ]; then rm $(READY); "$(PYTHON)" -m venv .venv; else "$(PYTHON)" -m venv --clear .venv; fi
	@$(PY) $(INSTALL) --requirement requirements.txt --constraint requirements.lock
	@$(PY) $(INSTALL) --no-deps --editable .
	@touch $(READY)
	@echo "Installed in $$(( $$(date +%s) - $(STARTED) )) s"
