# The README's two commands, and their parts. Needs Rust and Node 20; everything else is fetched or found.

CARGO ?= cargo
NPM   ?= npm
# nextest runs each test in a process of its own; plain `cargo test` serves where it is not installed.
RUST_TESTS := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo "nextest run" || echo "test")
ifeq ($(TIDEGATE_SCALE),full)
export NEXTEST_PROFILE ?= full
endif
BIN := target/debug/tidegate

.PHONY: demo test test-rust test-sdk test-e2e test-load faults build lint

demo: build
	$(BIN) dev

test: test-rust test-sdk test-e2e test-load

build:
	$(CARGO) build --workspace --bins

test-rust:
	$(CARGO) $(RUST_TESTS) --workspace

%/node_modules: %/package-lock.json
	cd $* && $(NPM) ci --no-fund --no-audit && touch node_modules

test-sdk: client-sdk-ts/node_modules gateway/cli/demo/node_modules
	cd client-sdk-ts && $(NPM) run lint && $(NPM) run format:check && $(NPM) run typecheck && $(NPM) test
	cd gateway/cli/demo && $(NPM) run lint && $(NPM) run format:check && $(NPM) run typecheck
	gateway/cli/demo/check-dist

# The SDK, the demo in a browser, and the Python client, against a real `tidegate dev`.
test-e2e: build client-sdk-ts/node_modules gateway/cli/demo/node_modules
	gateway/cli/tests/e2e/run $(BIN)

# The load test's scenarios; small unless TIDEGATE_SCALE=full.
test-load: build
	loadtest/suite $(dir $(BIN))

# Whether the tests are any good: deliberate faults, one after the other, each of which some test must catch. Needs Python 3.11.
faults:
	loadtest/faults/run

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
