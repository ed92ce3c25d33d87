package worker

import (
	"bytes"
	"encoding/json"
	"testing"

	"godwit.dev/godwit/snapshot"
)

// Progress of a step is told ten times a second at most, that a VM has settled each time.
func TestAnswers(t *testing.T) {
	var out bytes.Buffer
	a := &answers{enc: json.NewEncoder(&out)}
	for range 7 {
		a.progress(Progress{Progress: snapshot.Progress{Step: "lazy fill"}})
		a.progress(Progress{Progress: snapshot.Progress{Step: "lazy fill", Settled: true}})
	}
	settled, steps := 0, 0
	for d := json.NewDecoder(&out); d.More(); {
		var l line
		if err := d.Decode(&l); err != nil {
			t.Fatal(err)
		}
		if steps++; l.Progress.Settled {
			settled++
		}
	}
	if settled != 7 || steps > 9 {
		t.Errorf("%d lines, %d of them say that it has settled", steps, settled)
	}
}
