package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mutant is a fault that was mended, built back into the code that the simulation runs: a piece of a
// source file, and what it is replaced by.
type mutant struct{ file, before, after string }

// mutants are the faults of the nodes' rounds, after the six mutations of package model; the first three
// are those that a review found.
var mutants = map[string][]mutant{
	// What a list lacks that could not be read is absent, and no shim is asked: neither before the record says
	// that the claim is about to be given up, nor after.
	"absent by list": {
		{"migrate/engine/round_reconcile.go", "if unread == nil {", "{"},
		{"migrate/engine/round_reconcile.go", "\tif !r.nothing(ctx, rec.GetVm()) {\n\t\treturn nil\n\t}\n\tkey :=",
			"\tkey :="},
		{"migrate/engine/round_reconcile.go", "\tif !ended(rec) && !r.since(key) {",
			"\tif !(ended(rec) && r.nothing(ctx, rec.GetVm())) && !r.since(key) {"},
		{"migrate/engine/round_reconcile.go", "\t\tif !r.nothing(ctx, rec.GetVm()) {\n\t\t\treturn nil\n\t\t}\n\t\tif err :=",
			"\t\tif err :="},
	},
	// What a shim said before the record was asked is enough, and its task is killed whatever it does.
	"round kills": {
		{"migrate/engine/round_stray.go", "if err != nil || !same(s.q, again) {", "if err != nil && !same(s.q, again) {"},
		{"migrate/engine/round_stray.go", "return r.Tasks.Clear(ctx, s.vm,", "return r.Tasks.Undo(ctx, s.vm,"},
	},
	// A claim that the records do not know says nothing about their store.
	"store went back": {
		{"migrate/controller/verdict.go", "\t\t\tstate.Doubts = append(state.Doubts, d)\n", ""},
	},
	// What rivals say is measured by the number that their record got when the store was put back.
	"rivals are old": {
		{"migrate/transition/incarnation.go", "\tif !rec.GetRivals() {\n", "\t{\n"},
	},
	// The rule for snapshots takes those that are pinned.
	"pins are forgotten": {
		{"migrate/engine/snapshot_retain.go", "ref.GetPinned() || ref.GetManual()", "ref.GetManual()"},
		{"migrate/transition/pin.go", "\tcase ref.GetPinned():\n\t\treturn fmt", "\tcase false:\n\t\treturn fmt"},
	},
	// The rule is applied to what was seen, and the record does not decide once more.
	"pinned meanwhile": {
		{"migrate/transition/pin.go", "\tcase ref.GetPinned():\n\t\treturn fmt", "\tcase false:\n\t\treturn fmt"},
	},
	// The VMs of a silent node go elsewhere before a fence has proved that it runs none.
	"silence is death": {
		{"migrate/loss/give.go", "case !k.covers(ready):", "case len(ready) == 0:"},
	},
}

// quickest of podMutants is the one that is looked for whenever the tests run. make crash looks for all.
const quickest = "run when one is armed"

// podMutants are those of a pod, which TestSimulatedPods finds at these seeds.
var podMutants = map[string][]mutant{
	// Seed 2: one container that is armed is enough.
	quickest: {
		{"api/spec/pod.go", "if !ready(m.Guest) {",
			"if !slices.ContainsFunc(p.Containers, func(m Member) bool { return ready(m.Guest) }) {"},
	},
	// Seed 1: the source sends to a node that has said for what it waits.
	"sent to who waits": {
		{"migrate/engine/move.go", `if prepared.GetWaits() != "" {`, "if false {"},
	},
	// Seed 410: a wake that is committed is one that runs.
	"success by commit": {
		{"migrate/engine/wake.go", "q.GetState() == stateRunning && !q.GetAdopted() && mine: //",
			"!q.GetAdopted() && mine: //"},
	},
}

// placeMutants are those of a pod that is placed later, which TestSimulatedPlaces finds.
var placeMutants = map[string][]mutant{
	// A Create on the right node may be in any pod.
	"start in any pod": {
		{"api/record/record.go", `return place == "" || place == intent.Place }`, "return true }"},
	},
}

// overlay writes the sources with a fault, and what makes a build take them.
func overlay(t *testing.T, dir string, all []mutant) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{}
	for _, m := range all {
		file := filepath.Join(root, m.file)
		from, ok := replace[file]
		if !ok {
			from = file
			replace[file] = filepath.Join(dir, filepath.Base(file))
		}
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), m.before); n != 1 {
			t.Fatalf("%s has it %d times: %q", m.file, n, m.before)
		}
		if err := os.WriteFile(replace[file], []byte(strings.Replace(string(text), m.before, m.after, 1)),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "overlay.json")
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSimulatedRoundMutations builds each fault of mutants into the engine, the records, or the watch over silent
// nodes. It shows that each one breaks a history of TestSimulatedRounds in 10,000 at the latest.
func TestSimulatedRoundMutations(t *testing.T) {
	breaks(t, mutants, "TestSimulatedRounds", "-sim.rounds")
}

// TestSimulatedPodMutations is that for podMutants and TestSimulatedPods.
func TestSimulatedPodMutations(t *testing.T) {
	faults := podMutants
	if *podRuns == podHistories {
		faults = map[string][]mutant{quickest: podMutants[quickest]}
	}
	breaks(t, faults, "TestSimulatedPods", "-sim.pods")
}

// TestSimulatedPlaceMutations is that for placeMutants and TestSimulatedPlaces.
func TestSimulatedPlaceMutations(t *testing.T) {
	breaks(t, placeMutants, "TestSimulatedPlaces", "-sim.places")
}

func breaks(t *testing.T, faults map[string][]mutant, test, histories string) {
	if raced {
		t.Skip("the programs that it builds have no race detector")
	}
	for name, all := range faults {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			program := filepath.Join(dir, "engine.test")
			build := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay(t, dir, all), "-o", program, ".")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			out, err := exec.CommandContext(t.Context(), program, "-test.run", "^"+test+"$", histories,
				fmt.Sprint(10000), "-sim.safety").CombinedOutput()
			if err == nil || !strings.Contains(string(out), "seed ") {
				t.Fatalf("no history shows it: %v, %s", err, out)
			}
			t.Logf("%s", out)
		})
	}
}
