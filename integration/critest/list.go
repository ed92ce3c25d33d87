package critest

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed testdata/*.txt
var lists embed.FS

// Known is the committed list of a suite: the specs that a handler does not pass although the control does, and those
// that it skips, each with the reason.
func Known(suite string) (map[string]string, error) {
	data, err := lists.ReadFile("testdata/" + suite + "-known.txt")
	if err != nil {
		return nil, err
	}
	return parseKnown(string(data))
}

// parseKnown reads groups of specs. A line that begins with "reason: " begins a group.
func parseKnown(text string) (map[string]string, error) {
	known, reason := map[string]string{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if r, ok := strings.CutPrefix(line, "reason: "); ok {
			reason = r
			continue
		}
		if reason == "" {
			return nil, fmt.Errorf("read the list of known specs: %q has no reason above it", line)
		}
		if _, twice := known[line]; twice {
			return nil, fmt.Errorf("read the list of known specs: %q is in it twice", line)
		}
		known[line] = reason
	}
	return known, nil
}

// Floor is the committed list of the specs of a suite that the control passes, measured in several runs.
func Floor(suite string) (floor []string, err error) {
	data, err := lists.ReadFile("testdata/" + suite + "-runc.txt")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			floor = append(floor, line)
		}
	}
	return floor, nil
}
