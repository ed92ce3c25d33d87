package critest

import (
	"encoding/json"
	"fmt"
	"strings"
)

// State is how a spec ended.
type State string

// The states.
const (
	Passed  State = "passed"
	Failed  State = "failed"
	Skipped State = "skipped"
)

// Spec is one spec of a suite with its end.
type Spec struct {
	Name    string  `json:"name"`
	State   State   `json:"state"`
	Seconds float64 `json:"seconds"`
	Why     string  `json:"why,omitempty"` // it failed or was skipped
}

// ginkgoReport is what a suite made with ginkgo writes about itself.
type ginkgoReport []struct {
	SpecReports []struct {
		ContainerHierarchyTexts []string
		LeafNodeType            string
		LeafNodeText            string
		State                   string
		RunTime                 int64
		Failure                 struct{ Message string }
	}
}

// readGinkgo reads the specs that were selected.
func readGinkgo(data []byte) (all []Spec, err error) {
	var reports ginkgoReport
	if err := json.Unmarshal(data, &reports); err != nil {
		return nil, fmt.Errorf("parse the report of the suite: %w", err)
	}
	seen := map[string]int{}
	for _, suite := range reports {
		for _, r := range suite.SpecReports {
			if r.LeafNodeType != "It" || r.State == "pending" || r.State == "skipped" && r.Failure.Message == "" {
				continue // not selected
			}
			name := strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " ")
			if seen[name]++; seen[name] > 1 {
				name = fmt.Sprintf("%s (%d)", name, seen[name])
			}
			state := Failed // whatever else it is: panicked, timed out, interrupted
			if r.State == string(Passed) || r.State == string(Skipped) {
				state = State(r.State)
			}
			all = append(all, Spec{Name: name, State: state, Seconds: float64(r.RunTime) / 1e9, Why: line(r.Failure.Message)})
		}
	}
	return all, nil
}

// line is a message in one line that a person reads.
func line(message string) string {
	const most = 600
	text := strings.Join(strings.Fields(message), " ")
	if len(text) > most {
		text = text[:most] + " .."
	}
	return text
}
