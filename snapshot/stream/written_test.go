package stream

import (
	"bytes"
	"context"
	"os"
	"slices"
	"testing"

	"godwit.dev/godwit/snapshot/format"
)

// sevens is a table with the pages of a list, each full of one byte.
type sevens map[uint64]byte

func (s sevens) Has(page uint64) bool { _, ok := s[page]; return ok }

func (s sevens) Same(page uint64, data []byte) bool {
	return s.Has(page) && bytes.Equal(data, bytes.Repeat([]byte{s[page]}, format.PageSize))
}

func page(n int64) Part { return Part{n * format.PageSize, (n + 1) * format.PageSize} }

// Of the pages in the table those are unwritten that came last as the table has them. Said writes pages 1, 2, 3 and 5,
// and makes a hole of page 2.
func TestWritten(t *testing.T) {
	for name, tt := range map[string]struct {
		base Base
		want []Part // nil: it is not known
	}{
		"no table":     {},
		"as it was":    {sevens{1: 7, 3: 7, 5: 7}, []Part{}},
		"other pages":  {sevens{1: 7, 3: 8, 5: 7}, []Part{page(3)}},
		"a hole now":   {sevens{1: 7, 2: 7}, []Part{page(2)}},
		"never came":   {sevens{0: 7, 1: 7, 6: 7}, []Part{page(0), page(6)}},
		"side by side": {sevens{5: 1, 6: 7, 7: 7}, []Part{{page(5).Offset, page(7).End}}},
		"nothing":      {sevens{}, []Part{}},
	} {
		t.Run(name, func(t *testing.T) {
			to := target(t)
			to.Base = func(*os.File) Base { return tt.base }
			var got *Written
			to.Load = func(_ context.Context, _ string, _ End, w *Written) error { got = w; return nil }
			if err := Receive(t.Context(), &wire{Reader: bytes.NewReader(said(t))}, to); err != nil {
				t.Fatal(err)
			}
			if (got != nil) != (tt.want != nil) || got != nil && !slices.Equal(got.Parts, tt.want) {
				t.Errorf("written %v, want %v", got, tt.want)
			}
		})
	}
}

// Pages that came before the table count as written, and so do those that come as others between two barriers.
func TestWrittenBeforeTheTable(t *testing.T) {
	var s since
	same := bytes.Repeat([]byte{7}, format.PageSize)
	s.came(1, same)
	to := target(t)
	to.Base = func(*os.File) Base { return sevens{1: 7, 2: 7} }
	s.begin(&to, to.Table)
	s.came(2, same)
	s.came(2, make([]byte, format.PageSize))
	if w := s.written(); !slices.Equal(w.Parts, []Part{{page(1).Offset, page(2).End}}) {
		t.Errorf("written %v", w.Parts)
	}
}

// Of many parts those are joined between which there is least: none is lost.
func TestWrittenParts(t *testing.T) {
	const pages = 1 << 16
	table := sevens{}
	to := target(t)
	to.Spaces[0].Size = pages * format.PageSize
	for n := uint64(0); n < pages; n += 2 + n/2048 {
		table[n] = 7
	}
	to.Base = func(*os.File) Base { return table }
	var s since
	s.begin(&to, to.Table)
	w := s.written()
	if len(w.Parts) > mostParts || len(w.Parts) < mostParts/4 {
		t.Errorf("%d parts", len(w.Parts))
	}
	for n := range table {
		at := int64(n) * format.PageSize
		if !slices.ContainsFunc(w.Parts, func(p Part) bool { return p.Offset <= at && at < p.End }) {
			t.Fatalf("page %d was written, and is in no part", n)
		}
	}
}
