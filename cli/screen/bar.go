package screen

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/mattn/go-runewidth"

	"godwit.dev/godwit/internal/visible"
)

// Bar shows how far something is. On a terminal it is one line that is drawn again; elsewhere each phase is a line.
type Bar struct {
	out     io.Writer
	live    bool
	now     func() time.Time
	phase   string
	note    string
	drawn   bool
	rate    rate
	printed string // the last line of a phase, where it is no terminal
}

// NewBar draws on w.
func NewBar(w io.Writer) *Bar {
	return &Bar{out: visible.Under(w), live: Terminal(w), now: time.Now}
}

// Parts of the line.
const (
	mostBar   = 40                     // columns of the bar itself
	leastBar  = 8                      // below that there is none
	rateTime  = 500 * time.Millisecond // between two samples of the rate
	rateShare = 0.3                    // of the newest sample in the rate
)

// Show draws the phase: so many bytes of a total are done, 0 for a total that is not known. A note comes after them.
func (b *Bar) Show(phase string, done, total uint64, note string) {
	phase, note = visible.Line(phase), visible.Line(note)
	if phase != b.phase {
		b.rate = rate{}
	}
	b.phase, b.note = phase, note
	if !b.live {
		b.print()
		return
	}
	b.rate.sample(b.now(), done)
	fmt.Fprint(b.out, "\r"+fill(lineOf(phase, done, total, b.rate.perSecond, note, Width(b.out)-1), Width(b.out)-1))
	b.drawn = true
}

// print writes a phase once, with the first part of its note: what it counts would be a line for each look.
func (b *Bar) print() {
	head, _, _ := strings.Cut(b.note, ",")
	text := strings.TrimSuffix(b.phase+": "+head, ": ")
	if b.phase == "" || text == b.printed {
		return
	}
	b.printed = text
	fmt.Fprintln(b.out, strings.TrimSuffix(b.phase+": "+b.note, ": "))
}

// Finish leaves the line.
func (b *Bar) Finish() {
	if b.drawn {
		fmt.Fprint(b.out, "\r"+fill("", Width(b.out)-1)+"\r")
		b.drawn = false
	}
}

// lineOf is what fits of phase, bar, percent, bytes, rate, time and note.
func lineOf(phase string, done, total uint64, perSecond float64, note string, width int) string {
	if width <= 0 {
		return ""
	}
	parts := []string{phase}
	if total > 0 {
		done = min(done, total)
		parts = append(parts, "", fmt.Sprintf("%3d%%", uint64(100*float64(done)/float64(total))),
			zero(done)+"/"+Bytes(total))
	} else if done > 0 {
		parts = append(parts, Bytes(done))
	}
	if perSecond >= 1 && done > 0 {
		parts = append(parts, Bytes(uint64(perSecond))+"/s")
		if total > 0 {
			parts = append(parts, Age(time.Duration(float64(total-done)/perSecond*float64(time.Second)))+" left")
		}
	}
	if note != "" {
		parts = append(parts, note)
	}
	if total == 0 {
		return runewidth.Truncate(strings.Join(parts, "  "), width, cutMark)
	}
	room := min(mostBar, width-runewidth.StringWidth(strings.Join(parts, "  ")))
	if room < leastBar {
		return runewidth.Truncate(strings.Join(append(parts[:1:1], parts[2:]...), "  "), width, cutMark)
	}
	full := int(float64(room-2) * float64(done) / float64(total))
	parts[1] = "[" + strings.Repeat("=", full) + strings.Repeat(" ", room-2-full) + "]"
	return strings.Join(parts, "  ")
}

func zero(n uint64) string {
	if n == 0 {
		return "0B"
	}
	return Bytes(n)
}

// fill covers what an earlier, longer line has left.
func fill(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-runewidth.StringWidth(text)))
}

// rate is how many bytes are done in a second, lately.
type rate struct {
	at        time.Time
	done      uint64
	perSecond float64
}

func (r *rate) sample(now time.Time, done uint64) {
	if r.at.IsZero() || done < r.done {
		*r = rate{at: now, done: done}
		return
	}
	passed := now.Sub(r.at)
	if passed < rateTime {
		return
	}
	latest := float64(done-r.done) / passed.Seconds()
	if r.perSecond == 0 {
		r.perSecond = latest
	}
	r.perSecond += rateShare * (latest - r.perSecond)
	r.at, r.done = now, done
}
