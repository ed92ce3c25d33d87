package precopy

import "fmt"

// gone hears of pages that are holes now and were none.
type gone func(a *Area, block int, pages *Mask) error

// scan finds out which pages have data, and forgets what was known of those that have
// none any more. It never touches a hole: reading one through a mapping would fill it.
func (a *Area) scan(lost gone) error {
	clear(a.data)
	clear(a.touched)
	err := Extents(a.File, a.Size, func(offset, end int64) error {
		for offset < end {
			b := offset / blockSize
			to := min(end, (b+1)*blockSize)
			pages := (to - b*blockSize + pageSize - 1) / pageSize
			a.data[b].setRange(int((offset-b*blockSize)/pageSize), int(pages))
			offset = to
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("scan %s: %w", a.Name, err)
	}
	a.looked, a.short = true, false
	return a.forgetHoles(lost)
}

// forgetHoles makes pages that are holes such as were never seen: they are looked at once there is
// data, whatever the tracker tells.
func (a *Area) forgetHoles(lost gone) error {
	for i, b := range a.blocks {
		if b == nil {
			continue
		}
		b.due = b.due.and(&a.data[i])
		holes := b.known.without(&a.data[i])
		if holes.Empty() {
			continue
		}
		if err := lost(a, i, &holes); err != nil {
			return err
		}
		b.forget(&holes)
	}
	return nil
}

// written notes that pages of a range have to be looked at again.
func (a *Area) written(offset, end int64) {
	end = min(end, a.Size)
	for offset < end {
		i := offset / blockSize
		to := min(end, (i+1)*blockSize)
		first, last := int((offset-i*blockSize)/pageSize), int((to-i*blockSize+pageSize-1)/pageSize)
		a.touched[i].setRange(first, last)
		if b := a.blocks[i]; b != nil { // of another nothing is known
			b.due.setRange(first, last)
		}
		offset = to
	}
}

// find finds out where an area has data. That is as long as what was written where the tracker
// knows, or where it has just been found out (stand).
func (p *Precopy) find(a *Area, scope Scope) error {
	tracked := !scope.whole && p.o.Tracker != nil && p.untracked == nil
	if scope.Last && p.surveyed && a.Disk == "" {
		now, err := stampOf(a.File)
		if err != nil {
			return fmt.Errorf("scan %s: %w", a.Name, err)
		}
		tracked = tracked || a.stamp.stands(now)
	}
	if tracked {
		if known, err := a.rescan(!scope.Last, p.o.Copy.Gone); known || err != nil {
			return err
		}
	}
	return a.scan(p.o.Copy.Gone)
}

// survey finds out where RAM has data, which takes as long as what is resident. Punching a
// hole afterwards changes the file's times, and making a page the number of its pages.
func (p *Precopy) survey() (err error) {
	a := p.RAM()
	if a.File == nil {
		return nil
	}
	if a.stamp, err = stampOf(a.File); err != nil || !a.stamp.settled {
		return err
	}
	p.surveyed = true
	return a.scan(p.o.Copy.Gone)
}
