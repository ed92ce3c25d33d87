package engine

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// retries keeps why an engine has tried again.
type retries struct {
	mu  sync.Mutex
	all []string
}

func (r *retries) Event(_ context.Context, ev Event) {
	if ev.Type == Retrying {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, ev.Err.Error())
	}
}

func (r *retries) over() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, text := range r.all {
		if strings.Contains(text, "its time was over") {
			all = append(all, text)
		}
	}
	return all
}

// A step whose time is over says what it waited for. It says so once, however often its time is over.
func TestTimeIsOverOnce(t *testing.T) {
	w, told := newWorld(t), &retries{}
	e := w.engine("n1")
	t.Cleanup(e.Close)
	e.opts.Step, e.Events = 10*time.Millisecond, told
	w.broke("Release", errors.Join(errors.New("the shim is busy"), errdefs.ErrUnavailable))
	if err := w.hibernate(e, "h"); err != nil {
		t.Fatal(err)
	}
	w.called("Release", 1)
	w.hangs("Release", true)
	w.broke("Release", nil)
	w.until("the time is over four times", func() bool { return len(told.over()) >= 4 })
	w.hangs("Release", false)
	w.settle("h")
	for _, text := range told.over() {
		if n := strings.Count(text, "its time was over"); n > 1 || !strings.Contains(text, "the shim is busy") {
			t.Fatalf("it is said %d times: %s", n, text)
		}
	}
}
