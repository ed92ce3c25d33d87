package precopy

import "slices"

// WriteNotes are the kernel's of what is written to a disk (bpf.FileNotes).
type WriteNotes interface {
	// Take calls written for what was written since it was called last, also for more.
	Take(written func(offset, end int64))
	// Settled reports whether the notes are whole, of a VM that stands still. Until that is known they may lack writes.
	Settled() bool
}

// NotesDisks reports whether a pass before the pause makes it shorter, even if all of RAM is compared in it.
func (p *Precopy) NotesDisks() bool {
	return slices.ContainsFunc(p.Areas, func(a *Area) bool { return a.Notes != nil })
}

// takeNotes asks which pages of disks were written. It comes before the pages are read. A disk whose notes are not
// known to be whole when the VM stands still is read whole in the pause.
func (p *Precopy) takeNotes(last bool) {
	for _, a := range p.Areas {
		if a.Notes == nil {
			continue
		}
		whole := a.Notes.Settled()
		a.Notes.Take(a.written)
		a.noted = a.looked && (whole || !last)
		if last && !whole { // a pass may have looked at what was noted alone, so that it is not known when all was seen
			a.stamp = stamp{}
		}
	}
}
