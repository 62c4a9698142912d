# The short way to everything; `make` alone lists it.

BUILD := $(CURDIR)/build
# One cargo folder for cargo's own runs and for CMake's.
export CARGO_TARGET_DIR := $(if $(CARGO_TARGET_DIR),$(abspath $(CARGO_TARGET_DIR)),$(CURDIR)/target)
# Where Rust's installer puts cargo, for shells that were started before it.
export PATH := $(PATH):$(HOME)/.cargo/bin
JOBS := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

SETUP := $(CURDIR)/cmake/setup.sh
# The shell asks, not make: make expands a recipe before it runs the line that installs them.
CMAKE := "$$("$(SETUP)" which cmake)"
CTEST := "$$("$(SETUP)" which ctest)"
CONFIGURE := $(CMAKE) -S . -B "$(BUILD)" --log-level=NOTICE -DCMAKE_BUILD_TYPE=Release \
             -DMNNKV_CARGO_TARGET_DIR="$(CARGO_TARGET_DIR)"
COMPILE := $(CMAKE) --build "$(BUILD)" --parallel $(JOBS)

# Every interleaving of the store's queue, up to so many preemptions. Most of the time is compiling, so little is optimised.
LOOM := LOOM_MAX_PREEMPTIONS=3 CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0 RUSTFLAGS="--cfg loom"
# The schedules that may take longer than the others, so fewer.
TSAN := MNNKV_SCHEDULES=$${MNNKV_SCHEDULES:-500} CARGO_PROFILE_DEV_OPT_LEVEL=1 \
        TSAN_OPTIONS="suppressions=$(CURDIR)/tests/thread_sanitizer.supp" \
        RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg tsan"

# Or each makefile that CMake writes reports every folder that it enters.
MAKEFLAGS += --no-print-directory
# Targets share the build folder; each is parallel inside.
.NOTPARALLEL:
.PHONY: help demo test test-aarch64 sanitize soak bench size header setup lint clean

help:
	@echo "make demo     build the library and a C++ host, run it on the bundled KV sample"
	@echo "make test     every test: Rust, C, C++"
	@echo "make test-aarch64"
	@echo "              the same for aarch64 under qemu, on Debian machines of another kind"
	@echo "make sanitize random schedules of session and store under ThreadSanitizer (nightly Rust)"
	@echo "make soak     random schedules with failing memory and moving caches for MNNKV_SOAK_SECONDS (1800)"
	@echo "make bench    benchmarks: Rust and the C++ host path"
	@echo "make size     bytes of the stripped library, without and with model files, by room"
	@echo "make lint     cargo fmt and clippy; warnings are errors"
	@echo "make header   write the headers in include/ again after a change in src/ffi or model/src/ffi"
	@echo "make setup    install what the tests need and is missing"
	@echo "make clean    remove what was built"

demo:
	@$(call need-sources,demo)
	@"$(SETUP)" demo
	@$(CONFIGURE)
	@$(COMPILE) --target mnnkv_demo
	@"$(BUILD)/bin/mnnkv_demo"

test:
	@"$(SETUP)" test
	cargo test --locked --workspace
	$(LOOM) cargo test --locked --lib --target-dir "$(CARGO_TARGET_DIR)/loom" store::queue
	@$(CONFIGURE) -DMNNKV_BUILD_TESTS=ON
	@$(COMPILE)
	@cd "$(BUILD)" && $(CTEST) --output-on-failure

test-aarch64:
	@"$(CURDIR)/cmake/aarch64.sh"

# Dependencies are watched, too, since they are built here; the standard library is not (src/sys/sync.rs, tests/*.supp).
sanitize:
	$(TSAN) cargo +nightly test --locked --lib --target "$$(rustc -vV | sed -n 's/^host: //p')" \
	    --target-dir "$(CARGO_TARGET_DIR)/sanitize" -- session::tests store:: sys::claim

# Every kind of schedule, one after the other; fails when a byte is lost, freed cache memory is touched, or memory grows.
soak:
	MNNKV_SOAK_SECONDS=$${MNNKV_SOAK_SECONDS:-1800} cargo test --locked --lib -- --ignored --nocapture --exact \
	    session::tests::hours_of_schedules_lose_no_token_and_leak_no_memory
	cargo test --locked --release --test allocation -- --ignored --nocapture many_changed_blobs

bench:
	@$(call need-sources,bench)
	@"$(SETUP)" demo
	cargo bench --locked --workspace --exclude mnn-kv-capi --exclude mnnkv-cli
	@$(CONFIGURE)
	@$(COMPILE) --target mnnkv_bench_host mnnkv_bench_session
	@"$(BUILD)/bin/mnnkv_bench_host"
	@"$(BUILD)/bin/mnnkv_bench_session"

size:
	@cmake/size.sh

header:
	MNNKV_WRITE_HEADER=1 cargo test --locked --test header

setup:
	@"$(SETUP)" test

lint:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

clean:
	cargo clean
	rm -rf "$(BUILD)"

# Says what is wrong where CMake would only say that there is no such target.
define need-sources
test -n "$(wildcard cpp-tests/$(1)/*.cpp)" || { echo "make $(1): there is no source in cpp-tests/$(1)" >&2; exit 1; }
endef
