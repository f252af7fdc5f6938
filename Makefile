# One command runs what CI runs: `make test`.
# Everything that is built once and kept (cargo-deny, the API server) goes to CACHE, outside the tree.

CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/cedargate
CARGO ?= cargo
DENY_VERSION := 0.20.2

# Cedar recurses deeply, and unoptimised test threads have 2 MiB (webhook/engine/src/policies/scan.rs has the bounds).
export RUST_MIN_STACK := 16777216

.PHONY: test format lint deny pure unit demo bench bench-quota components cluster clean

test: format lint pure deny components unit demo

format:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --workspace --all-targets --locked -- --deny warnings

# The engine decides, and touches nothing: its dependencies may not even contain what it would need for that.
pure:
	@impure=$$($(CARGO) tree -p engine --edges normal --prefix none --locked \
	    | grep -E '^(tokio|hyper|tower|rustls|kube-client|axum|reqwest|socket2|mio) ' || true); \
	if [ -n "$$impure" ]; then echo "the engine depends on: $$impure"; exit 1; fi; \
	echo "the engine depends on no runtime, client or HTTP crate"

deny: $(CACHE)/bin/cargo-deny-$(DENY_VERSION)
	$(CACHE)/bin/cargo-deny --locked --offline --log-level error check bans licenses sources

$(CACHE)/bin/cargo-deny-$(DENY_VERSION):
	$(CARGO) install --locked --root $(CACHE) --target-dir $(CACHE)/target cargo-deny@$(DENY_VERSION)
	ln -sf cargo-deny $@

unit:
	$(CARGO) test --workspace --locked

# What the README promises a newcomer, as they would type it.
demo:
	$(CARGO) run --release --locked -- demo

bench:
	$(CARGO) bench --workspace --bench gate --locked

# What a quota costs those who submit: three replicas, a real API server.
bench-quota: components
	$(CARGO) bench --workspace --bench quota --locked

# kube-apiserver and what belongs to it, from Go modules, once. KUBEBUILDER_ASSETS names a folder of your own instead.
components:
	tests/cluster/components/build

# A cluster to try things in, until Ctrl-C.
cluster:
	$(CARGO) run -p cluster --locked

clean:
	$(CARGO) clean
