# Every target sets up .venv by itself, once.
BIN := .venv/bin

.PHONY: setup demo test test-slow test-browser coverage check docs format clean

setup:
	@scripts/setup

demo: setup  ## a first look: pictures, a short training and its report
	@$(BIN)/vitlab demo

test: setup  ## the default suite, in two processes of one core each
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: setup  ## what takes longer
	@$(BIN)/python -m pytest -m slow

test-browser: setup  ## the page in the system's Chromium, where there is one
	@scripts/test-browser

coverage: setup  ## the default suite with its coverage; fails below the floor in pyproject.toml
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --cov --cov-report=term

check: setup  ## format, lint, types and tests
	@scripts/check

docs: setup  ## the site, in build/docs; offline once its tools are installed
	@scripts/docs

format: setup
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
