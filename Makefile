# Two commands on a fresh Debian machine: `make demo` and `make check`. A plain `make` builds build/weft.
MAKEFLAGS += --no-print-directory
BUILD ?= build
JOBS  ?= $(shell nproc)

.PHONY: all setup configure demo check check-sanitize fuzz install clean
all: configure
	@cmake --build $(BUILD) -j $(JOBS)

configure: setup
	@cmake -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release >/dev/null

setup:
	@bash tools/setup.sh

# The command alone: tests and benchmarks would take most of the time.
demo: configure
	@cmake --build $(BUILD) -j $(JOBS) --target weft
	@bash tools/demo.sh $(BUILD)/weft

check: all
	@bash tools/setup.sh cross
	@bash tools/check.sh $(BUILD)

check-sanitize: setup
	@cmake -S . -B $(BUILD)-sanitize -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEFT_SANITIZE=ON >/dev/null
	@cmake --build $(BUILD)-sanitize -j $(JOBS)
	@bash tools/check_sanitize.sh $(BUILD)-sanitize

fuzz: setup
	@bash tools/fuzz.sh

install: all
	@cmake --install $(BUILD)

clean:
	@rm -rf $(BUILD) $(BUILD)-sanitize $(BUILD)-fuzz
