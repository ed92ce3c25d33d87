package precopy

import "time"

// What a pause costs, about: before the last pass, and for each page in it that one core
// looks at.
const (
	PauseFixed   = 12 * time.Millisecond
	pausePerPage = 3 * time.Microsecond
	// passFixed is what a pass costs before its first page.
	passFixed = 3 * time.Millisecond
)

// enough reports whether passes end: the pause would take aim at most, or the rest does not shrink.
func (p *Precopy) enough(rest, before uint64, aim time.Duration) bool {
	return p.estimate(rest) <= aim || before > 0 && rest*10 > before*shrinking
}

// Fits reports whether a pause that looks at so many pages is expected to fit the budget.
func (p *Precopy) Fits(rest uint64) bool { return p.estimate(rest) <= p.o.Budget }

// estimate is what the pause costs, about, for looking at so many pages, and for sending them.
func (p *Precopy) estimate(rest uint64) time.Duration {
	p.rest = rest
	p.expected = PauseFixed + time.Duration(rest)*pausePerPage/time.Duration(len(p.work))
	if p.o.Sends {
		p.expected += time.Duration(float64(rest) * p.pace())
	}
	return p.expected
}

// pace is how many nanoseconds it takes to send a page that was looked at: by what passes took,
// the last ones before all, which write to memory that the destination has touched before.
func (p *Precopy) pace() float64 {
	var took, sent float64
	for _, one := range p.passes {
		looking := float64(one.Looked/pageSize) * float64(pausePerPage) / float64(len(p.work))
		took = took/4 + max(0, one.MS*float64(time.Millisecond)-float64(passFixed)-looking)
		sent = sent/4 + float64(one.Sent/pageSize)
	}
	return took / max(sent, 1)
}

// due counts the pages that have to be looked at in the pause, as far as it is known now.
func (p *Precopy) due() (n uint64) {
	for _, a := range p.Areas {
		for i, b := range a.blocks {
			if b == nil {
				continue
			}
			both := b.due.or(&b.left)
			if a.Disk != "" { // notes name holes too, and no pass looks at those
				both = both.and(&a.data[i])
			}
			n += uint64(both.Count())
		}
	}
	return n
}
