package shim

import (
	"context"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/fsnotify/fsnotify"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/retry"
)

// Times of volumes that are kept fresh. A kubelet changes one by a new directory and a rename: the guest is told once
// both are done.
const (
	syncDelay   = 50 * time.Millisecond
	syncRetry   = time.Second      // after the first try that failed; doubled up to
	syncLongest = 30 * time.Second // this one
	syncRescan  = time.Minute      // for what no event told of
)

// freshness keeps the pod's synced volumes as the host's directories are.
type freshness struct {
	pod     *pod
	watcher *fsnotify.Watcher // nil: the kernel has no room for one more
	watched map[string]bool   // sources
	due     map[string]bool   // sources that the guest is to be told of
	failed  map[string]string // of each source: what went wrong with the last try
	pause   retry.Backoff     // after a try that failed
}

func newFreshness(p *pod) *freshness {
	return &freshness{pod: p, watched: map[string]bool{}, due: map[string]bool{}, failed: map[string]string{},
		pause: retry.Backoff{Min: syncRetry, Max: syncLongest}}
}

// keepFresh tells the guest what changes in the sources of synced volumes, until ctx ends. It is part of the VM's
// traffic: while an operation holds the VM the guest is told nothing, and all of it when the VM goes on.
func (p *pod) keepFresh(ctx context.Context) {
	p.awaitEarly(ctx)
	f := newFreshness(p)
	w, err := fsnotify.NewWatcher()
	if err != nil {
		p.vm.log.Warn("volumes are looked at once a minute", "error", err)
		f.run(ctx, nil, nil)
		return
	}
	f.watcher = w
	defer w.Close()
	f.run(ctx, w.Events, w.Errors)
}

// early tells a guest that wakes of its volumes, before its traffic flows. The zero value does not.
type early struct {
	stop func()
	over chan struct{} // closed at its end
}

// freshenEarly tells a guest that was just resumed of its synced volumes, and waits for nothing. What fails is tried
// again by keepFresh, which comes after it and says so.
func (p *pod) freshenEarly(agent agentv1.AgentService) {
	p.awaitEarly(p.vm.life) // of a try before this one to meet the guest
	if !p.vm.isPod() {
		return
	}
	ctx, cancel := context.WithTimeout(p.vm.life, guestBound)
	over := make(chan struct{})
	p.early = early{stop: cancel, over: over}
	go func() {
		defer close(over)
		defer cancel()
		for source, id := range p.synced() {
			if err := p.sync(ctx, agent, id, source); err != nil {
				p.vm.log.Debug("freshen volume early", "volume", id, "error", err)
			}
		}
	}()
}

// awaitEarly returns when freshenEarly asks the guest nothing any more, which the end of ctx makes it do.
func (p *pod) awaitEarly(ctx context.Context) {
	if p.early.stop == nil {
		return
	}
	select {
	case <-p.early.over:
	case <-ctx.Done():
		p.early.stop()
		<-p.early.over
	}
}

// run tells the guest of changes. After the kernel has lost some, it looks at every volume.
func (f *freshness) run(ctx context.Context, changes <-chan fsnotify.Event, lost <-chan error) {
	rescan := time.NewTicker(syncRescan)
	defer rescan.Stop()
	delay := time.NewTimer(0)
	defer delay.Stop()
	f.all()
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-changes:
			f.due[filepath.Dir(e.Name)] = true
			delay.Reset(syncDelay)
		case err := <-lost:
			f.pod.vm.log.Warn("look at all volumes: their changes were not heard of", "error", err)
			f.all()
			delay.Reset(syncDelay)
		case <-f.pod.added:
			f.watch()
		case <-rescan.C:
			f.all()
			delay.Reset(0)
		case <-delay.C:
			if f.push(ctx) {
				f.pause.Reset()
			} else {
				delay.Reset(f.pause.Next())
			}
		}
	}
}

// all makes every source due.
func (f *freshness) all() {
	f.watch()
	for source := range f.watched {
		f.due[source] = true
	}
}

// watch watches the sources that have come since the last time. What has changed before the watch began is due.
func (f *freshness) watch() {
	for source := range f.pod.synced() {
		if f.watched[source] {
			continue
		}
		f.watched[source], f.due[source] = true, true
		if f.watcher == nil {
			continue
		}
		if err := f.watcher.Add(source); err != nil {
			f.pod.vm.log.Warn("a volume is looked at once a minute", "error", err)
		}
	}
}

// push tells the guest of what is due, and reports whether it has heard all of it.
func (f *freshness) push(ctx context.Context) bool {
	volumes := f.pod.synced()
	for source := range f.due {
		id, known := volumes[source]
		if known {
			bound, cancel := context.WithTimeout(ctx, guestBound)
			err := f.pod.sync(bound, f.pod.vm.guest(), id, source)
			cancel()
			if err != nil && !errdefs.IsNotFound(err) { // who makes a volume tells the guest
				if ctx.Err() == nil {
					f.note(source, id, err)
				}
				continue
			}
		}
		delete(f.due, source)
		delete(f.failed, source)
	}
	return len(f.due) == 0
}

// note logs what went wrong, once if it is the same each time.
func (f *freshness) note(source, id string, err error) {
	if said := err.Error(); f.failed[source] != said {
		f.failed[source] = said
		f.pod.vm.log.Warn("keep volume fresh; it is tried again", "volume", id, "error", err)
	}
}

// synced are the volumes that are kept fresh: the id of each source.
func (p *pod) synced() map[string]string {
	j, out := p.vm.journal.Load(), map[string]string{}
	for source, id := range j.Volumes {
		if v := j.Spec.Pod.Volume(id); v != nil && v.Kind == spec.VolumeSynced {
			out[source] = id
		}
	}
	return out
}
