# make test: set-up and all fast tests. make demo: set-up and the demonstration.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: venv test slow soak lock check format demo clean

venv: .venv/installed

# a torch that is already in .venv (a CPU-only build, say) is kept, whatever the pins say
.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	if $(BIN)/python -c "import torch" 2>/dev/null; \
	  then grep -v '^torch==' constraints.txt; else cat constraints.txt; fi > .venv/constraints.txt
	$(BIN)/python -m pip install --quiet -c .venv/constraints.txt -e '.[dev]'
	touch $@

test: venv
	$(BIN)/python -m pytest

slow: venv
	$(BIN)/python -m pytest -m slow

soak: venv
	$(BIN)/python -m benchmarks.soak

# what constraints.txt pins, with the digests of its files; torch and CUDA are left out, so that any
# build of torch can be kept
lock: venv
	$(BIN)/uv pip compile -q pyproject.toml --extra dev -c constraints.txt --universal \
	  --generate-hashes --no-annotate --custom-compile-command 'make lock' \
	  | awk '/^[^ ]/ { keep = !/^(torch=|nvidia-|cuda-)/ } keep' > requirements.lock

check: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

demo: venv
	$(BIN)/progmem demo

clean:
	rm -rf .venv build dist
