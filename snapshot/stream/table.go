package stream

import "os"

// table takes the VM's page table: by it the next snapshot finds what the store has. A VM
// is whole without one, so that a file that cannot be written costs a larger push, no more.
type table struct {
	f        *os.File // nil: given up
	size, at int64
}

// offered answers whether the destination takes what the hello announces.
func (t *table) offered(h *Hello, f *os.File) bool {
	if f == nil || h.Table <= 0 || h.Table > tableBound(h.Spaces) {
		return false
	}
	t.f, t.size = f, h.Table
	return true
}

// tableBound is how large the page table of such spaces is at most: 40 bytes for a page, and
// of each page that is in use there may be a few that are not.
func tableBound(spaces []Area) int64 {
	bound := int64(1 << 20)
	for _, s := range spaces {
		bound += s.Size / 16
	}
	return bound
}

func (t *table) take(f *Frame) error {
	data, err := f.at(t.at, t.size)
	if err != nil {
		return err
	}
	if t.f != nil {
		if _, err := t.f.WriteAt(data, t.at); err != nil {
			_ = t.f.Truncate(0) // what is left has no use, and its reader finds it short
			t.f = nil
		}
	}
	t.at += int64(len(data))
	return nil
}

func (t *table) whole() bool { return t.at == t.size }
