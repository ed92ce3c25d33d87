package nearest

import "testing"

// A word with one or two wrong letters gets the nearest that are known, and one that is far from all gets none.
func TestQuestion(t *testing.T) {
	known := []string{"web", "database-primary", "snapshot", "b"}
	for said, want := range map[string]string{
		"wbe": "Did you mean web?", "databse-primary": "Did you mean database-primary?", "snap": "Did you mean snapshot?",
		"zzzz": "", "web": "", "": "", "c": "", "bb": "Did you mean b?",
	} {
		if got := Question(said, known); got != want {
			t.Errorf("%q: %q, want %q", said, got, want)
		}
	}
}
