package restore

import (
	"os"

	"godwit.dev/godwit/snapshot/format"
)

// plan turns the index around: which pages each frame is written to.
type plan struct {
	index *format.Index
	first []uint32 // by frame, into list
	list  []use
	pages uint64
}

// use is a run of a space.
type use struct {
	space uint32
	run   uint32
}

// newPlan is of the spaces that have a file, or of all.
func newPlan(x *format.Index, files []*os.File, all bool) *plan {
	p := &plan{index: x, first: make([]uint32, len(x.Frames)+1)}
	each := func(do func(u use, r format.Run)) {
		for i, file := range files {
			if file == nil && !all {
				continue
			}
			for j, r := range x.Spaces[i].Runs {
				do(use{uint32(i), uint32(j)}, r)
			}
		}
	}
	each(func(_ use, r format.Run) {
		p.first[r.Frame+1]++
		p.pages += uint64(r.Count)
	})
	for i := range x.Frames {
		p.first[i+1] += p.first[i]
	}
	p.list = make([]use, p.first[len(x.Frames)])
	next := append([]uint32(nil), p.first...)
	each(func(u use, r format.Run) {
		p.list[next[r.Frame]] = u
		next[r.Frame]++
	})
	return p
}

// packs returns those that hold a page that is wanted.
func (p *plan) packs() []int {
	var list []int
	for i := range p.index.Packs {
		if a, b := p.frames(i); a < b && p.first[a] < p.first[b] {
			list = append(list, i)
		}
	}
	return list
}

func (p *plan) frames(pack int) (first, end int) { return p.index.PackFrames(pack) }

func (p *plan) uses(frame int) []use { return p.list[p.first[frame]:p.first[frame+1]] }
