# godwit: one command each. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build

VERSION ?= $(shell git describe --tags --dirty --always 2>/dev/null || echo devel)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
PREFIX  ?= /usr/local
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
MANDIR ?= $(PREFIX)/share/man
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR  ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
COUNT   ?= 1
FUZZTIME ?= 10m
BENCH_ROUNDS ?= 7
BENCH_ONLY ?=
BESIDE  ?=
TIME    ?= 30m
SEED    ?= 0
MUTATION ?=
SCALE_ONLY ?=
CASES   ?= all
VMM     ?= qemu
HANDLER ?= godwit
RELEASE ?= 2.4.2
FOCUS   ?=

export GOTOOLCHAIN := local

pkg     := godwit.dev/godwit
ldflags := -s -w -X $(pkg)/api/version.Version=$(VERSION) -X $(pkg)/api/version.Commit=$(COMMIT)
gobuild := CGO_ENABLED=0 go build -trimpath -ldflags '$(ldflags)'
tools   := bin/tools
# The module of Kubernetes is built as the programs of Kubernetes are: the build cache then has its packages already.
k8s_go  := CGO_ENABLED=0 GOFLAGS=-trimpath go
# Packages that have integration tests; evaluated only where it is used. Those of make k8s and make test-k8s need the programs of Kubernetes.
integration_pkgs = $(shell grep -rl --include='*_test.go' '^//go:build integration' . | grep -v -e '^./integration/k8s/' -e '^./migrate/kubernetes/' | xargs -r -n1 dirname | sort -u)
# What runs on the operator's machine: no Linux needed.
portable = ./cmd/godwit ./api/...

.PHONY: image k8s-images integration-k8s chart usability alerts chromium screenshots upgrade man docs qemu2 help build install uninstall test integration test-all lint generate guest demo demo-live demo-pod demo-k8s bench bench-live \
	shimtest critest cri-suite k8s test-k8s k8s-scale crash soak stress scale releases fuzz fuzz-smoke clean package kvmhost setup tools

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build the programs into bin/
	@mkdir -p bin
	$(gobuild) -o bin/ ./cmd/...

guest: bin/guest/version ## build what container images are booted with into bin/guest/ (kernel, initramfs)

# Made again only when something in it changed: the kernel package is downloaded.
bin/guest/version: tools/guest/build.sh go.mod $(shell find cmd/godwit-init guest api -name '*.[gs]*' ! -name '*_test.go' 2>/dev/null)
	VERSION='$(VERSION)' tools/guest/build.sh
	@touch $@

setup: ## install the Debian packages that are missing (root)
	tools/setup.sh

# What the demos run: one containerd with ctr, the CNI plugins, and Debian's registry, which is not built here.
demo_tools := $(tools)/.containerd $(tools)/.cni $(tools)/docker-registry

tools: $(tools)/.containerd $(tools)/.containerd23 $(tools)/.registry $(tools)/.cni $(tools)/.nerdctl $(tools)/.etcd $(tools)/docker-registry ## build containerd (two releases), ctr, nerdctl, the registries, etcd and the CNI plugins into bin/tools/

$(tools)/sbom: tools/sbom/main.go tools/sbom/go.mod tools/sbom/go.sum
	cd tools/sbom && CGO_ENABLED=0 go build -trimpath -o $(CURDIR)/$@ .

$(tools)/image: tools/image/main.go tools/image/tree.go tools/image/go.mod tools/image/go.sum
	cd tools/image && CGO_ENABLED=0 go build -trimpath -o $(CURDIR)/$@ .

$(tools)/.%: tools/%/go.mod tools/%/go.sum
	@mkdir -p $(tools)/cni $(tools)/containerd23 $(tools)/etcd
	cd tools/$* && CGO_ENABLED=0 GOBIN=$(CURDIR)/$(tools)/$(filter cni containerd23 etcd,$*) go install -trimpath -tags no_btrfs tool
	@touch $@

# critest is a test program, and so is containerd's suite.
$(tools)/.critest: tools/critest/go.mod tools/critest/go.sum
	@mkdir -p $(tools)
	cd tools/critest && CGO_ENABLED=0 GOBIN=$(CURDIR)/$(tools) go install -trimpath tool && \
		CGO_ENABLED=0 go test -c -trimpath -o $(CURDIR)/$(tools)/critest sigs.k8s.io/cri-tools/cmd/critest
	@touch $@

$(tools)/.crisuite: tools/crisuite/go.mod tools/crisuite/go.sum
	@mkdir -p $(tools)
	cd tools/crisuite && CGO_ENABLED=0 go test -c -trimpath -tags no_btrfs -o $(CURDIR)/$(tools)/cri-suite \
		github.com/containerd/containerd/v2/integration
	@touch $@

# The programs of Kubernetes, all in one go build. Without its version the API server calls itself v0.0.0, which kubectl refuses.
k8s_version = $(shell sed -n 's|^\tk8s.io/kubernetes v\([0-9.]*\).*|\1|p' tools/k8s/go.mod)
k8s_ldflags = -s -w $(foreach p,component-base/version client-go/pkg/version,$(foreach v,gitVersion=v$(k8s_version) \
	gitMajor=$(word 1,$(subst ., ,$(k8s_version))) gitMinor=$(word 2,$(subst ., ,$(k8s_version))) gitTreeState=clean,-X k8s.io/$(p).$(v)))
$(tools)/.k8s: tools/k8s/go.mod tools/k8s/go.sum
	@mkdir -p $(tools)/k8s
	cd tools/k8s && CGO_ENABLED=0 GOBIN=$(CURDIR)/$(tools)/k8s go install -trimpath -ldflags '$(k8s_ldflags)' tool
	@touch $@

# agent-sandbox asks for another release of Kubernetes' modules: it has a module of its own.
$(tools)/.agentsandbox: tools/agentsandbox/go.mod tools/agentsandbox/go.sum
	@mkdir -p $(tools)/agentsandbox
	cd tools/agentsandbox && CGO_ENABLED=0 GOBIN=$(CURDIR)/$(tools)/agentsandbox go install -trimpath -ldflags '-s -w' tool
	cd tools/agentsandbox && for suite in e2e e2e/extensions; do CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' \
		-o $(CURDIR)/$(tools)/agentsandbox/$$(echo $$suite | tr / -) sigs.k8s.io/agent-sandbox/test/$$suite || exit 1; done
	@touch $@

# Debian's own registry, unpacked: its package would start it.
$(tools)/docker-registry:
	rm -rf bin/debs/docker-registry && mkdir -p $(tools) bin/debs/docker-registry
	cd bin/debs/docker-registry && { apt-get -q download docker-registry || { apt-get -q update && apt-get -q download docker-registry; }; } && \
		dpkg -x docker-registry_*.deb . && mv usr/bin/docker-registry $(CURDIR)/$@

# Debian's promtool, unpacked: its package would start Prometheus.
$(tools)/promtool:
	rm -rf bin/debs/prometheus && mkdir -p $(tools) bin/debs/prometheus
	cd bin/debs/prometheus && { apt-get -q download prometheus || { apt-get -q update && apt-get -q download prometheus; }; } && \
		dpkg -x prometheus_*.deb . && mv usr/bin/promtool $(CURDIR)/$@

# Debian's runc, unpacked: it runs the container of godwitd in a test.
$(tools)/runc:
	rm -rf bin/debs/runc && mkdir -p $(tools) bin/debs/runc
	cd bin/debs/runc && { apt-get -q download runc || { apt-get -q update && apt-get -q download runc; }; } && \
		dpkg -x runc_*.deb . && mv usr/sbin/runc $(CURDIR)/$@

alerts: $(tools)/promtool ## check the alert rules, and when each fires
	$(tools)/promtool check rules packaging/prometheus/*.rules.yml
	$(tools)/promtool test rules packaging/prometheus/*.rules.test.yml

chromium: setup ## install the browser that the dashboard is tried in (root)
	tools/setup.sh chromium fonts-dejavu-core

screenshots: chromium tools build guest ## try the dashboard in a browser and verbs in a terminal, and write their pictures into docs/images/ (root)
	mkdir -p docs/images
	GODWIT_SCREENSHOTS=$(CURDIR)/docs/images go test -tags integration -count=1 ./integration/browser

test: ## unit tests with the race detector: no root, no VM
	CGO_ENABLED=1 go test -race -timeout 20m ./...
	go test -run 'TestSimulat' ./migrate/engine
	go test -tags points ./internal/failpoint
	cd migrate/kubernetes && $(k8s_go) test ./...

integration: setup tools image $(tools)/runc $(tools)/.critest alerts chromium ## tests with real VMs, containerd and a registry (root)
	@test "$$(id -u)" = 0 || { echo 'make integration needs root' >&2; exit 1; }
	status=0; tools/integration.sh $(integration_pkgs) || status=1; tools/qemu2.sh || status=1; tools/upgrade.sh || status=1; tools/shimtest.sh || status=1; exit $$status

test-all: ## make test and make integration, on a fresh machine too (root)
	$(MAKE) --no-print-directory setup
	status=0; for all in test integration; do $(MAKE) --no-print-directory $$all || status=1; done; exit $$status

demo: setup $(demo_tools) build guest ## two nodes: a VM sleeps in a registry and wakes on the other node, in the VMM called VMM (root)
	@mkdir -p out bin/integration
	$(gobuild) -o bin/integration/demo ./integration/cmd/demo
	GODWIT_VMM=$(VMM) bin/integration/demo -out out/demo.json

demo-live: setup $(demo_tools) build guest ## two nodes: a VM moves to the other one while it runs, in the VMM called VMM (root)
	@mkdir -p out bin/integration
	$(gobuild) -o bin/integration/demo ./integration/cmd/demo
	GODWIT_VMM=$(VMM) bin/integration/demo -live -out out/demo-live.json

demo-pod: setup $(demo_tools) $(tools)/.critest build guest ## two nodes: a pod of three containers sleeps, wakes on the other node, and moves back while it runs (root)
	@mkdir -p out bin/integration
	$(gobuild) -o bin/integration/demo ./integration/cmd/demo
	GODWIT_VMM=$(VMM) bin/integration/demo -pod -out out/demo-pod.json

demo-k8s: setup $(demo_tools) $(tools)/.etcd $(tools)/.k8s $(tools)/runc build guest ## Kubernetes with two nodes: a VirtualMachine sleeps, wakes on the other node, and moves back while it runs, by kubectl; a drain moves it with its TCP connection open (root)
	@mkdir -p out bin/integration
	$(gobuild) -o bin/integration/demo ./integration/cmd/demo
	bin/integration/demo -k8s -out out/demo-k8s.json

lint: setup $(tools)/.lint $(tools)/.generate $(tools)/.swagger $(tools)/.crd ## formatting, vet, linters, generated code, portability, go.mod
	tools/lint.sh $(portable)

docs: ## links, names of files, commands and sentences of the documents, words and columns of Go (a part of make test and make lint)
	go test -count=1 -run 'Doc|Decision|Glossary|Promise|Words|Columns' ./integration/rules
	go test -count=1 -run 'OfDocs|TestDocumentation' ./cli

generate: $(tools)/.generate $(tools)/.swagger $(tools)/.crd ## make the Go code of the .proto files and of the API description again, and the schemas of Kubernetes
	tools/generate.sh

qemu2: setup build guest ## the VMM suite on a newer QEMU from backports, and moves between both (root)
	tools/qemu2.sh

upgrade: setup tools package ## VMs of the release before under the programs of the package (root)
	tools/upgrade.sh

bench: setup tools $(tools)/.critest $(tools)/runc build guest ## performance figures into out/bench.json, from BENCH_ROUNDS rounds, of the groups in BENCH_ONLY; with VMM=.. of the VMMs side by side, with BESIDE=DIR of two builds (root)
ifeq ($(origin VMM),file)
	@mkdir -p out bin/integration
	$(gobuild) -o bin/integration/bench ./integration/cmd/bench
	bin/integration/bench -rounds $(BENCH_ROUNDS) -only '$(BENCH_ONLY)' -out out/bench.json -beside '$(BESIDE)'
	[ -n '$(BENCH_ONLY)$(BESIDE)' ] || BENCH_ROUNDS=$(BENCH_ROUNDS) tools/bench-vmm.sh
else
	tools/bench-vmm.sh ring
endif

bench-live: setup tools build guest ## figures of moves beside QEMU's own migration into out/bench-live.json, from BENCH_ROUNDS rounds, of the groups in BENCH_ONLY; with VMM=cloud-hypervisor in the KVM ring, beside its own (root)
ifeq ($(origin VMM),file)
	@mkdir -p out bin/integration
	$(gobuild) -o bin/integration/bench ./integration/cmd/bench
	bin/integration/bench -live -rounds $(BENCH_ROUNDS) -only '$(BENCH_ONLY)' -out out/bench-live.json
else
	tools/bench-live-ring.sh
endif

shimtest: setup tools build guest ## containerd's own conformance suites on the shim, COUNT times (root)
	tools/shimtest.sh $(COUNT)

critest: setup tools $(tools)/.critest $(tools)/runc build guest ## critest of cri-tools with runc and with the runtime handler HANDLER (godwit), on containerd RELEASE, into out/critest.json (root)
	@mkdir -p out bin/integration
	$(gobuild) -o bin/integration/critest ./integration/cmd/critest
	bin/integration/critest -suite critest -handler '$(HANDLER)' -containerd '$(RELEASE)' -focus '$(FOCUS)'

cri-suite: setup tools $(tools)/.critest $(tools)/.crisuite $(tools)/runc build guest ## containerd's own CRI suite, as make critest, into out/cri-suite.json (root)
	@mkdir -p out bin/integration
	$(gobuild) -o bin/integration/critest ./integration/cmd/critest
	bin/integration/critest -suite cri-suite -handler '$(HANDLER)' -containerd '$(RELEASE)' -focus '$(FOCUS)'

k8s: setup $(demo_tools) $(tools)/.etcd $(tools)/.k8s $(if $(filter smoke,$(CASES)),,$(tools)/.agentsandbox) $(tools)/runc build guest ## CASES (all, smoke, machines, a regular expression of names) of pods under real kubelets, with the runtime handler HANDLER (godwit), into out/k8s.json (root)
	@mkdir -p out bin/integration
	$(gobuild) -o bin/integration/k8s ./integration/cmd/k8s
	bin/integration/k8s -cases '$(CASES)' -handler '$(HANDLER)'

integration-k8s: ## the cases of make k8s with VirtualMachines on two nodes, a VM whose programs are killed at each step among them (root)
	$(MAKE) k8s CASES=machines

test-k8s: $(tools)/.etcd $(tools)/.k8s $(tools)/.crd $(tools)/.helm ## the API of Kubernetes on a real API server and etcd, without a node, into out/test-k8s.json
	@mkdir -p out bin/integration
	$(gobuild) -o bin/integration/testk8s ./integration/cmd/testk8s
	bin/integration/testk8s

k8s-scale: $(tools)/.etcd $(tools)/.k8s ## what 1,000 VirtualMachines on 100 fake nodes cost the operator and a real API server, into out/k8s-scale.json
	@mkdir -p out
	cd migrate/kubernetes && $(k8s_go) test -tags integration -count=1 -timeout 90m -v ./scale -fleet.vms 1000 \
		-fleet.nodes 100 -fleet.idle 60s -fleet.out $(CURDIR)/out/k8s-scale.json

crash: setup tools build guest ## kill every program at every step, COUNT times; moves, which go on where a run was interrupted, into out/crash.json (root)
	@mkdir -p out && rm -f out/simulated out/crash.json
	go test -count=1 -run 'TestSimulation$$' ./migrate/engine -args -sim.told $(CURDIR)/out/simulated
	go test -count=1 -run 'TestSimulatedRounds$$' ./migrate/engine -args -sim.rounds 10000
	go test -count=1 -run 'TestSimulatedPod' ./migrate/engine -args -sim.pods 3000
	GODWIT_CRASH=full go test -tags integration -count=$(COUNT) -p 1 -timeout 240m -run Crash $(integration_pkgs)

soak: setup tools build guest ## verbs and faults that SEED draws, for TIME (30m), on 12 VMs and three nodes with three controllers; MUTATION: an old fault, built back in; into out/soak.json (root)
	@mkdir -p out bin/integration
	$(gobuild) -o bin/integration/soak ./integration/cmd/soak
	bin/integration/soak -time $(TIME) -seed $(SEED) -mutation '$(MUTATION)' -out out/soak.json

stress: setup tools build guest ## 50 small VMs by 8 clients at once, COUNT times; nothing stays, no daemon grows (root)
	GODWIT_STRESS=full go test -tags integration -count=$(COUNT) -v -timeout 60m -run TestDaemons ./integration/life

scale: setup tools build guest ## what 10,000 VMs on 1,000 nodes cost the controller, into out/scale.json, of the groups in SCALE_ONLY (root)
	@mkdir -p out bin/integration
	$(gobuild) -o bin/integration/scale ./integration/cmd/scale
	bin/integration/scale -only '$(SCALE_ONLY)' -out out/scale.json

releases: setup tools build guest ## the tests of ctr and of restarts on each release of containerd (root)
	for release in 2.3.7 2.4.2; do \
		GODWIT_CONTAINERD=$$release go test -tags integration -count=$(COUNT) -p 1 -timeout 30m ./integration/ctr ./integration/life; \
	done

fuzz: ## run every fuzz target for FUZZTIME (10m) each
	tools/fuzz.sh $(FUZZTIME)

fuzz-smoke: ## run every fuzz target for ten seconds from its seeds, as many at once as there are processors
	tools/fuzz.sh 10s smoke

kvmhost: setup tools $(tools)/.critest build guest ## CASES (all, smoke, a VMM, names of integration/ring/cases.txt) with KVM, here or in a guest that offers it (root)
	tools/kvmhost.sh $(CASES)

usability: setup tools package ## from a clean Debian to the first VM, and a docker user's day, each screen compared with the reviewed one (root; UPDATE=1 writes them)
	rm -f out/install.json
	go test -tags integration -count=1 -timeout 15m -run TestFromCleanSystem ./integration/install
	go test -tags integration -count=1 -timeout 10m -v -run TestUsability ./integration/usability $(if $(UPDATE),-update)

package: setup build guest man $(tools)/.nfpm $(tools)/sbom ## the Debian package, the RPM and their parts list (CycloneDX) into out/; those for arm64, without a guest, into out/arm64/
	tools/package.sh out arm64

image: package $(tools)/image ## the container image of godwitd for nodes of Kubernetes, amd64 and arm64, as an OCI layout in out/image
	VERSION='$(VERSION)' COMMIT='$(COMMIT)' tools/image.sh out/image

chart: $(tools)/.helm ## the Helm chart of godwit, made of packaging/kubernetes/default, into out/godwit-VERSION.tgz
	cd migrate/kubernetes && $(k8s_go) run ./chart -version '$(VERSION)'
	$(tools)/helm package out/chart/godwit --destination out

k8s-images: build guest ## the images of packaging/kubernetes/default, for ctr images import, into out/k8s-images.tar
	@mkdir -p out
	VERSION='$(VERSION)' COMMIT='$(COMMIT)' tools/k8s-images.sh out/k8s-images.tar

man: build
	@VERSION='$(VERSION)' tools/man.sh

# As configured: the last of config.toml and the files of config.d counts.
configured = cat $(DESTDIR)$(SYSCONFDIR)/godwit/config.toml $(DESTDIR)$(SYSCONFDIR)/godwit/config.d/*.toml 2>/dev/null | \
	sed -n "s|^[ \t]*state_dir[ \t]*=[ \t]*['\"]\([^'\"]*\)['\"].*|\1|p" | tail -n 1
STATEDIR ?= $(or $(shell $(configured)),/var/lib/godwit)
dropin = $(DESTDIR)$(SYSCONFDIR)/containerd/conf.d/godwit.toml
# The drop-in as it was installed: what differs from it was changed since.
reference = $(DESTDIR)$(PREFIX)/share/godwit/containerd/godwit.toml

install: build guest man ## install programs, guest, manual, completions, unit and drop-ins; honours DESTDIR and PREFIX
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/godwit $(DESTDIR)$(SYSCONFDIR)/godwit/config.d
	install -m 0755 bin/containerd-shim-godwit-v1 bin/godwitd bin/godwit $(DESTDIR)$(PREFIX)/bin/
	install -m 0644 bin/guest/vmlinuz bin/guest/initramfs $(DESTDIR)$(PREFIX)/share/godwit/
	test -e $(DESTDIR)$(SYSCONFDIR)/godwit/config.toml || { \
		sed 's|@PREFIX@|$(PREFIX)|g' packaging/config.toml >$(DESTDIR)$(SYSCONFDIR)/godwit/config.toml && \
		chmod 0644 $(DESTDIR)$(SYSCONFDIR)/godwit/config.toml; }
	install -d $(DESTDIR)$(UNITDIR) $(DESTDIR)$(SYSCONFDIR)/containerd/conf.d
	sed 's|@PREFIX@|$(PREFIX)|g' packaging/godwitd.service >$(DESTDIR)$(UNITDIR)/godwitd.service
	chmod 0644 $(DESTDIR)$(UNITDIR)/godwitd.service
	@if [ ! -e $(dropin) ] || cmp -s $(reference) $(dropin); then install -m 0644 packaging/containerd-godwit.toml $(dropin); \
		elif ! cmp -s packaging/containerd-godwit.toml $(dropin); then \
		echo "install: $(dropin) is not as it was installed, and stays. The new one is $(reference)"; fi
	install -D -m 0644 packaging/containerd-godwit.toml $(reference)
	install -d $(DESTDIR)$(MANDIR)/man1 $(DESTDIR)$(MANDIR)/man5 $(DESTDIR)$(MANDIR)/man8
	install -m 0644 bin/share/man/*.1 $(DESTDIR)$(MANDIR)/man1/
	install -m 0644 bin/share/man/*.5 $(DESTDIR)$(MANDIR)/man5/
	install -m 0644 bin/share/man/*.8 $(DESTDIR)$(MANDIR)/man8/
	install -d $(DESTDIR)$(BASHDIR) $(DESTDIR)$(ZSHDIR) $(DESTDIR)$(FISHDIR)
	install -m 0644 bin/share/completion/bash $(DESTDIR)$(BASHDIR)/godwit
	install -m 0644 bin/share/completion/zsh $(DESTDIR)$(ZSHDIR)/_godwit
	install -m 0644 bin/share/completion/fish $(DESTDIR)$(FISHDIR)/godwit.fish

# As in packaging/scripts/prerm. There the package cannot refuse.
uninstall: ## remove what install put there; what you have changed of the configuration stays, and so does the state
	@for journal in $(DESTDIR)$(STATEDIR)/vms/*/*/node.json; do \
		[ -e "$$journal" ] && [ -z "$(LEAVE_VMS)" ] || continue; \
		echo "uninstall: there are VMs of this node ($$journal), and without the shim they cannot be deleted. To see them:" \
			"godwit ps -a -A. To remove one: godwit rm VM. To go on all the same: make uninstall LEAVE_VMS=1" >&2; \
		exit 1; \
	done
	@if [ -z "$(DESTDIR)" ] && [ -d /run/systemd/system ]; then systemctl stop godwitd.service || true; fi
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/bin/,containerd-shim-godwit-v1 godwitd godwit)
	rm -f $(DESTDIR)$(UNITDIR)/godwitd.service
	@if cmp -s $(reference) $(dropin) || cmp -s packaging/containerd-godwit.toml $(dropin); then rm -f $(dropin); \
		elif [ -e $(dropin) ]; then echo "uninstall: $(dropin) is not as it was installed, and stays"; fi
	rm -f $(addprefix $(DESTDIR)$(MANDIR)/,man1/godwit.1 man1/godwit-*.1 man5/godwit-*.5 man8/godwitd.8 man8/containerd-shim-godwit-v1.8)
	rm -f $(DESTDIR)$(BASHDIR)/godwit $(DESTDIR)$(ZSHDIR)/_godwit $(DESTDIR)$(FISHDIR)/godwit.fish
	rm -rf $(DESTDIR)$(PREFIX)/share/godwit

clean: ## remove bin/ and out/
	rm -rf bin out
