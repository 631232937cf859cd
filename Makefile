# Two commands on a fresh Debian machine: `make demo` and `make check`. A plain `make` builds build/weft.
BUILD ?= build
JOBS  ?= $(shell nproc)

.PHONY: all setup demo check check-sanitize fuzz install clean
all: setup
	@cmake -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)

setup:
	@bash tools/setup.sh

demo: all
	@bash tools/demo.sh $(BUILD)/weft

check: all
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
