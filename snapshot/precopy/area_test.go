package precopy

import (
	"bytes"
	"testing"
)

// A page is the same by its bytes, mapped or read. A mapped hole is another page, and stays a hole.
func TestSame(t *testing.T) {
	const pages = 2 * BlockPages
	for name, mapped := range map[string]bool{"mapped": true, "read": false} {
		t.Run(name, func(t *testing.T) {
			f := sparse(t, pages)
			a := NewArea(Space{Name: "ram0", File: f}, 0, pages*pageSize)
			if mapped {
				if err := a.open(); err != nil {
					t.Fatal(err)
				}
				defer a.close()
			}
			if err := a.scan(ignore); err != nil {
				t.Fatal(err)
			}
			before, err := a.allocated()
			if err != nil {
				t.Fatal(err)
			}
			one := append([]byte{1}, make([]byte, pageSize-1)...)
			for _, tt := range []struct {
				page int64
				data []byte
				want bool
			}{
				{0, one, true}, {0, bytes.Repeat([]byte{1}, pageSize), false},
				{7, one, false}, {7, make([]byte, pageSize), !mapped},
			} {
				same, err := a.Same(tt.page*pageSize, (*[pageSize]byte)(tt.data), new([pageSize]byte))
				if err != nil || same != tt.want {
					t.Errorf("page %d and %d..: %v, %v", tt.page, tt.data[0], same, err)
				}
			}
			if after, err := a.allocated(); err != nil || after != before {
				t.Errorf("%d pages, %d before, %v", after, before, err)
			}
		})
	}
}
