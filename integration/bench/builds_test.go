package bench

import (
	"bytes"
	"strings"
	"testing"
)

// The interval of a median has the ranks of the tables of the sign test.
func TestInterval(t *testing.T) {
	for n, rank := range map[int]int{5: 1, 6: 1, 8: 1, 9: 2, 12: 3, 20: 6, 30: 10} {
		var values []float64
		for i := range n {
			values = append(values, float64(n-i))
		}
		if low, high := interval(values); low != float64(rank) || high != float64(n+1-rank) {
			t.Errorf("of %d values: %v to %v, want those of rank %d", n, low, high, rank)
		}
	}
}

// A run that ended early prints the pairs that it has.
func TestPrintUnfinished(t *testing.T) {
	var out bytes.Buffer
	c := &builds{Builds: Builds{Log: &out}}
	for _, v := range []float64{100, 200} {
		c.note(0, "run.first_byte_ms", v)
	}
	c.note(1, "run.first_byte_ms", 150)
	c.note(1, "boot.cpu_ms", 1)
	c.print()
	if text := out.String(); !strings.Contains(text, "1.500 (1.500 to 1.500)") || strings.Contains(text, "boot") {
		t.Errorf("printed:\n%s", text)
	}
}
