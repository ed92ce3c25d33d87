package precopy

import "testing"

// A range of pages is one run of a mask.
func TestMask(t *testing.T) {
	for _, c := range [][2]int{{0, 1}, {0, 64}, {63, 65}, {5, 200}, {255, 256}, {0, 256}, {64, 128}} {
		var m Mask
		m.setRange(c[0], c[1])
		var got [][2]int
		_ = m.Runs(func(from, to int) error { got = append(got, [2]int{from, to}); return nil })
		if len(got) != 1 || got[0] != c || m.Count() != c[1]-c[0] {
			t.Errorf("range %v gives %v, %d pages", c, got, m.Count())
		}
	}
}
