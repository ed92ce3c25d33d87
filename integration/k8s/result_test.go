package k8s

import (
	"io"
	"strings"
	"testing"
)

// TestRead: what go test -json says is counted. A case without an end has failed, and so has a run without a case.
func TestRead(t *testing.T) {
	const run = `{"Action":"run","Test":"TestA"}` + "\n"
	for name, c := range map[string]struct {
		output string
		want   [3]int // passed, failed, skipped
		err    string // "": the run is a success
	}{
		"passed": {run + `{"Action":"pass","Test":"TestA","Elapsed":2}` + "\n" + `{"Action":"pass","Elapsed":3}`,
			[3]int{1, 0, 0}, ""},
		"failed": {run + `{"Action":"output","Test":"TestA","Output":"    a_test.go:3: it is wrong\n"}` + "\n" +
			`{"Action":"fail","Test":"TestA"}`, [3]int{0, 1, 0}, "TestA failed: it is wrong"},
		"skipped": {`{"Action":"pass","Test":"TestB"}` + "\n" + `{"Action":"skip","Test":"TestA"}`,
			[3]int{1, 0, 1}, "TestA was skipped"},
		"a part of a case": {`{"Action":"pass","Test":"TestA/part"}` + "\n" + `{"Action":"pass","Test":"TestA"}`,
			[3]int{1, 0, 0}, ""},
		"it never ended": {run + `{"Action":"output","Test":"TestA","Output":"panic: x\n"}`, [3]int{0, 1, 0}, "did not end"},
		"no program":     {"# example\n./a.go:1: syntax error\n", [3]int{0, 0, 0}, "no case passed"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Read(strings.NewReader(c.output), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			if got := [3]int{r.Passed, r.Failed, r.Skipped}; got != c.want {
				t.Errorf("passed, failed, skipped: %v, want %v", got, c.want)
			}
			if err := r.Err(); (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("the run: %v, want %q", err, c.err)
			}
		})
	}
}
