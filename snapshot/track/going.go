package track

// Going is a tracker of a VM that goes on after its last look, as after a checkpoint: the kernel
// notes on from there. Reading the notes and beginning new ones is one step of the kernel, before the
// pages of the pause are read. So there is no write that neither that read nor the notes have.
type Going struct {
	Tracker
	noting bool
}

// GoOn makes one of a tracker that New or Continue has made by that way; nil: that way cannot.
func GoOn(way Way, t Tracker) *Going {
	if way != UFFD {
		return nil
	}
	return &Going{Tracker: t}
}

// Next arms after the last look, too.
func (g *Going) Next(last bool, written func(offset, end int64)) (bool, error) {
	g.noting = false
	known, err := g.Tracker.Next(false, written)
	g.noting = last && err == nil
	return known, err
}

// Noting reports whether the kernel has notes since the last look, for Continue. Without an error it
// has them even if nothing was known of the interval before.
func (g *Going) Noting() bool { return g != nil && g.noting }
