package shim

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/steps"
)

// The hooks of a VM that comes with a NIC are told what its guest has. nerdctl's hooks are asked for it, and once more
// for any network where they cannot have that. Of a VM that boots nothing is said.
func TestHooksAreToldWhatTheGuestHas(t *testing.T) {
	comes := []spec.NIC{{MAC: "02:00:00:00:00:01", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24"),
		netip.MustParsePrefix("fd00::2/64")}}}
	const godwits, nerdctls = "10.0.0.2,fd00::2 02:00:00:00:00:01", " 10.0.0.2 fd00::2 02:00:00:00:00:01"
	for name, c := range map[string]struct {
		nics    []spec.NIC
		nerdctl bool
		refuses string // the hook fails if it is told this
		want    []string
		fails   bool
	}{
		"boot":          {nil, true, "-", []string{""}, false},
		"move":          {comes, false, "-", []string{godwits}, false},
		"nerdctl":       {comes, true, "-", []string{godwits + nerdctls}, false},
		"taken address": {comes, true, nerdctlIP, []string{godwits + nerdctls, godwits}, false},
		"no network":    {comes, true, spec.AnnotationMAC, []string{godwits + nerdctls, godwits}, true},
		"other hook":    {comes, false, spec.AnnotationMAC, []string{godwits}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.must("create", w.create())
			vm, err := w.service.current()
			w.must("find VM", err)
			w.must("write", vm.write(func(j *journal.Journal) {
				j.Spec = j.Spec.Clone()
				j.Spec.NICs = c.nics
			}))
			annotations := map[string]string{}
			if c.nerdctl {
				annotations[nerdctlState] = "/state"
			}
			out := filepath.Join(t.TempDir(), "told")
			vm.owner.bundle.Annotations = annotations
			vm.owner.bundle.Hooks = bundle.Hooks{bundle.CreateRuntime: {{Path: "/bin/sh",
				Args: []string{"sh", "-c", `tee -a "$0" | { ! grep -q "\"$1\""; }`, out, c.refuses}}}}
			if err := runCreateHooks(t.Context(), new(steps.Undo), vm.owner); (err != nil) != c.fails {
				t.Errorf("hooks: %v", err)
			}
			if told := toldTo(t, out); !slices.Equal(told, c.want) {
				t.Errorf("told %q, want %q", told, c.want)
			}
		})
	}
}

// toldTo answers what of its network each run of a hook was told.
func toldTo(t *testing.T, file string) (told []string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for states := json.NewDecoder(bytes.NewReader(data)); states.More(); {
		var s specs.State
		if err := states.Decode(&s); err != nil {
			t.Fatal(err)
		}
		var has []string
		for _, key := range []string{spec.AnnotationAddresses, spec.AnnotationMAC, nerdctlIP, nerdctlIP6, nerdctlMAC} {
			has = append(has, s.Annotations[key])
		}
		told = append(told, strings.TrimSpace(strings.Join(has, " ")))
	}
	return told
}
