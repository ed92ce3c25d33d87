package track

import (
	"errors"
	"testing"
)

// asked is a tracker that says how it was asked.
type asked struct {
	content
	last []bool
	err  error
}

func (a *asked) Next(last bool, _ func(offset, end int64)) (bool, error) {
	a.last = append(a.last, last)
	return true, a.err
}

// The notes go on after the last look alone, and not where that failed. What cannot arm as it reads has none.
func TestGoing(t *testing.T) {
	a := &asked{}
	g := GoOn(UFFD, a)
	for _, step := range []struct {
		last bool
		err  error
		want bool
	}{{}, {last: true, want: true}, {}, {last: true, err: errors.New("failed")}} {
		a.err = step.err
		if known, err := g.Next(step.last, nil); !known || !errors.Is(err, step.err) || g.Noting() != step.want {
			t.Errorf("%+v: known %v, %v, noting %v", step, known, err, g.Noting())
		}
	}
	for i, last := range a.last {
		if last {
			t.Errorf("look %d arms nothing", i)
		}
	}
	for _, way := range []Way{SoftDirty, Content} {
		if GoOn(way, content{}).Noting() {
			t.Errorf("%s has notes", way)
		}
	}
}
