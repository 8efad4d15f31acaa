# Everything a person or CI does with this tree. Each target brings what it needs from Debian's or Ubuntu's packages;
# Rust itself is taken as given. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO  ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
# Recipes that `make image` builds, of images/ and tests/images/.
IMAGES ?= base
# What tests need of the daemon beyond what users get: places at which it dies, fails or waits (daemon/src/fault).
# The same for every command below, so that nothing is compiled twice.
FAULTS := --features lodged/fault-points
# Words that only a daemon with such places has in it.
FAULTS_MARK := this lodged has fault points
# On which storage driver `make test` runs: all tests on overlay or on btrfs; where nothing is said, STORAGE_TESTS on btrfs and then
# all on overlay.
STORAGE ?=
# What is about files, or about what a driver leaves when it fails: the rest is the same on either driver.
STORAGE_TESTS := binary(/^(cases_storage|cases_work|posix|attacks_storage|pool|disk|disk_api|image_prune|layer_disk|faults|reboot|damage|durability|attacks_image)$$/)
# The version whose tests are pinned in tests/tests/posix.
PJDFSTEST := 0.2.2
# Which rows `make bench` measures (all by default) and how many samples each gets.
ROWS ?=
SAMPLES ?= 200
# How long `make soak` goes on; or, instead, how many sandboxes come and go, or how often one is frozen and thawed; and the
# seed of its load.
MINUTES ?= 10
CYCLES ?=
FREEZES ?=
SEED ?=

# Where `install` takes the programs from.
BUILT ?= target/release

BINDIR     := $(DESTDIR)$(PREFIX)/bin
UNITDIR    := $(DESTDIR)$(PREFIX)/lib/systemd/system
SYSUSERDIR := $(DESTDIR)$(PREFIX)/lib/sysusers.d
CONFDIR    := $(DESTDIR)/etc/lodge

# $(call need_root,what for)
need_root = [ "$$(id -u)" -eq 0 ] || { echo "make $@ needs root ($(1)): run it as root, e.g. with sudo" >&2; exit 1; }

.PHONY: help deps nextest build build-for-tests release lint test test-vm redteam fuzz mutations doc pjdfstest bench bench-hardening bench-peers bench-peers-stop soak demo image install install-files clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## install the packages that building and testing need
	@.ci/deps.sh build image python faults storage

nextest:
	@cargo nextest --version >/dev/null 2>&1 || $(CARGO) install cargo-nextest --locked

# What POSIX says of file systems, for a test. Unoptimised: it is built in less time, and runs for seconds.
pjdfstest: ## bring what tests a sandbox's files against POSIX
	@.ci/deps.sh build
	@[ -x target/pjdfstest/bin/pjdfstest ] || CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) install pjdfstest --version $(PJDFSTEST) --locked --debug \
	  --root target/pjdfstest --target-dir target/pjdfstest/build --quiet

build: ## build the daemon and the command, for development
	@.ci/deps.sh build
	$(CARGO) build --workspace --bins

# All of the workspace, here and above: a subset would have other features of shared crates, and compile them anew.
release: ## build the daemon and the command, optimised
	@.ci/deps.sh build
	$(CARGO) build --release --workspace --bins
	@! grep --quiet --text --fixed-strings '$(FAULTS_MARK)' target/release/lodged || \
	  { echo "make $@: target/release/lodged has fault points, which are for tests alone" >&2; exit 1; }

lint: nextest ## formatting, clippy, direction of the dependencies, licences
	@.ci/deps.sh build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --workspace --all-targets $(FAULTS) -- -D warnings
	$(CARGO) nextest run -p lodge-tests -E 'binary(architecture)'
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --offline check bans licenses sources; \
	else echo "lint: cargo-deny is not installed, licences are not checked (cargo install cargo-deny --locked)"; fi

build-for-tests:
	@.ci/deps.sh build
	$(CARGO) build --workspace --bins $(FAULTS)

test: deps nextest build-for-tests pjdfstest ## all tests; needs root; STORAGE=overlay or btrfs
	@$(call need_root,it makes namespaces, cgroups and mounts)
	@images/build.sh base target/debug/lodge
	@images/build.sh work target/debug/lodge
	$(CARGO) test --workspace --doc $(FAULTS)
ifeq ($(STORAGE),)
	tests/storage.sh run btrfs $(CARGO) nextest run --workspace $(FAULTS) -E '$(STORAGE_TESTS)'
	tests/storage.sh run overlay $(CARGO) nextest run --workspace $(FAULTS)
else
	tests/storage.sh run $(STORAGE) $(CARGO) nextest run --workspace $(FAULTS)
endif

test-vm: deps nextest build-for-tests ## tests with cgroup v2 alone, on Debian's own kernel in a virtual machine (no KVM needed); needs root
	@$(call need_root,it makes a disk with files of root)
	@.ci/deps.sh vm
	@images/build.sh base target/debug/lodge
	@tests/vm/run.sh

redteam: deps nextest build-for-tests pjdfstest ## every attack of the catalogue, each also without its protection, and in bubblewrap and runc; needs root; ATTACKS="E07 R"
	@$(call need_root,its tests make sandboxes)
	@.ci/deps.sh redteam
	@images/build.sh base target/debug/lodge
	@images/build.sh work target/debug/lodge
	tests/storage.sh run overlay target/debug/redteam $(ATTACKS)

fuzz: ## random input to what reads what others send, MINUTES each; needs root
	@$(call need_root,imports keep owners)
	@.ci/deps.sh build fuzz
	@tests/fuzz/run.sh $(MINUTES)

mutations: deps nextest build-for-tests pjdfstest ## break the product line by line and see that a test turns red; needs root
	@$(call need_root,its tests make sandboxes)
	@images/build.sh base target/debug/lodge
	@images/build.sh work target/debug/lodge
	tests/mutations/check.sh

doc: ## API documentation in target/doc
	@.ci/deps.sh build
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

soak: release ## mixed load with kills of the daemon, and the slopes of what it uses; needs root; MINUTES=n SEED=n, or CYCLES=n, or FREEZES=n
	@$(call need_root,it makes sandboxes)
	@.ci/deps.sh storage
	@images/build.sh base target/release/lodge
	target/release/soak $(if $(CYCLES),--cycles $(CYCLES),$(if $(FREEZES),--freezes $(FREEZES),--minutes $(MINUTES))) $(if $(SEED),--seed $(SEED))

demo: build ## real commands in a real sandbox, from nothing; needs root
	@$(call need_root,it starts the daemon)
	@.ci/deps.sh storage
	@images/build.sh base target/debug/lodge
	@client/examples/demo.sh target/debug

bench: release ## speed against posix_spawn, docker and runc; needs root; ROWS="..." SAMPLES=n
	@$(call need_root,it makes sandboxes)
	@.ci/deps.sh storage
	@images/build.sh base target/release/lodge
	target/release/bench --samples $(SAMPLES) $(ROWS)

bench-hardening: release ## what the protections of a sandbox cost, against the same daemon without them; needs root; SAMPLES=n
	@$(call need_root,it makes sandboxes)
	@.ci/deps.sh storage
	@images/build.sh base target/release/lodge
	$(CARGO) build --profile measured -p lodged --features lodged/weaken
	LODGE_TEST_BINARIES=$(CURDIR)/target/measured target/release/bench --samples $(SAMPLES) run_true_vs_without_protections acquire_run_vs_without_protections

bench-peers: ## install and start docker, containerd and runc for the bench; needs root
	@$(call need_root,it installs packages and starts daemons)
	@tests/bench-peers.sh start

bench-peers-stop: ## stop what bench-peers started; needs root
	@$(call need_root,it ends daemons of root)
	@tests/bench-peers.sh stop

image: build ## build the archives of IMAGES (base) under target/images; needs root
	@$(call need_root,files of an image have owners)
	@for image in $(IMAGES); do images/build.sh $$image target/debug/lodge; \
	  echo "target/images/$$image.tar is ready: lodge image import target/images/$$image.tar --name $$image"; done

install: release install-files ## binaries, unit, group and example configuration, under DESTDIR and PREFIX

# What was built already, in BUILT.
install-files:
	install -D -m 0755 -t "$(BINDIR)" "$(BUILT)/lodged" "$(BUILT)/lodge"
	install -d "$(UNITDIR)"
	sed 's|@BINDIR@|$(PREFIX)/bin|' daemon/packaging/lodged.service >"$(UNITDIR)/lodged.service"
	install -D -m 0644 daemon/packaging/lodge.sysusers "$(SYSUSERDIR)/lodge.conf"
	install -D -m 0644 daemon/packaging/lodged.toml "$(CONFDIR)/lodged.toml.example"

clean: ## remove everything that was built
	$(CARGO) clean
