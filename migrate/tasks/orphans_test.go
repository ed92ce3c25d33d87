package tasks

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	gocni "github.com/containerd/go-cni"
	"github.com/containerd/typeurl/v2"
	"github.com/google/go-cmp/cmp"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/fdtest"
)

// kept is containerd with these container objects, by namespace/id, which tells events.
type kept struct {
	containers.Store
	events.Publisher
	events.Forwarder
	mu     sync.Mutex
	all    map[string]bool
	away   bool
	asked  int
	events chan *events.Envelope
	ends   chan error
	subs   int
}

func (k *kept) Get(ctx context.Context, id string) (containers.Container, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	ns, _ := namespaces.Namespace(ctx)
	switch {
	case k.away:
		return containers.Container{}, errdefs.ErrUnavailable
	case !k.all[ns+"/"+id]:
		return containers.Container{}, errdefs.ErrNotFound
	}
	return containers.Container{ID: id}, nil
}

func (k *kept) Subscribe(context.Context, ...string) (<-chan *events.Envelope, <-chan error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.subs++
	return k.events, k.ends
}

// tell has it tell of a container of namespace a.
func (k *kept) tell(t *testing.T, event any) {
	t.Helper()
	any, err := typeurl.MarshalAny(event)
	if err != nil {
		t.Fatal(err)
	}
	k.events <- &events.Envelope{Namespace: "a", Topic: "/containers/delete", Event: any}
}

func (k *kept) client(t *testing.T, n *networks) *Client {
	t.Helper()
	c, err := containerd.New("", containerd.WithServices(containerd.WithSandboxStore(new(shimSandboxes)),
		containerd.WithContainerStore(k), containerd.WithEventService(k)))
	if err != nil {
		t.Fatal(err)
	}
	return &Client{containerd: c, networks: n}
}

func TestOrphans(t *testing.T) {
	n, f := newFake(t)
	k := &kept{all: map[string]bool{"a/kept": true}}
	c := k.client(t, n)
	if err := c.Orphans(t.Context()); err != nil || k.asked > 0 {
		t.Fatalf("nothing made: %v, asked %d times", err, k.asked)
	}
	for _, vm := range []*nodev1.VM{{Namespace: "a", Id: "kept"}, {Namespace: "a", Id: "gone"},
		{Namespace: "b", Id: "kept"}} {
		if err := n.connect(t.Context(), vm, nics); err != nil {
			t.Fatal(err)
		}
	}
	k.away = true
	if err := c.Orphans(t.Context()); !errdefs.IsUnavailable(err) || len(n.made()) != 3 {
		t.Fatalf("containerd is away: %v, left %v", err, n.made())
	}
	k.away = false
	f.fail["remove"] = 1 // one that fails does not hold up the others
	if err := c.Orphans(t.Context()); !errdefs.IsInternal(err) || len(n.made()) != 2 {
		t.Fatalf("one fails: %v, left %v", err, n.made())
	}
	if err := c.Orphans(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a/kept"}, n.made()); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// A wake under way has the VM of that name, and no container yet when it is looked for: what it
// makes is not taken from it, and a later look finds what it left.
func TestOrphanOfAWake(t *testing.T) {
	n, _ := newFake(t)
	k := &kept{all: map[string]bool{}}
	vm := &nodev1.VM{Namespace: "a", Id: "vm"}
	synctest.Test(t, func(t *testing.T) {
		c := k.client(t, n)
		if err := n.connect(t.Context(), vm, nics); err != nil {
			t.Fatal(err)
		}
		unlock, err := c.serial.lock(t.Context(), vm)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Orphans(t.Context()); err != nil || len(n.made()) != 1 {
			t.Errorf("during a wake: %v, left %v", err, n.made())
		}
		k.all["a/vm"] = true
		begun := time.Now()
		if err := c.Orphans(t.Context()); err != nil || time.Since(begun) > 0 {
			t.Errorf("one that has a container is waited for: %v, %v", time.Since(begun), err)
		}
		delete(k.all, "a/vm")
		unlock()
		if err := c.Orphans(t.Context()); err != nil || len(n.made()) != 0 {
			t.Errorf("after it: %v, left %v", err, n.made())
		}
	})
}

// A plugin that hangs keeps neither the next network nor, for ever, the VM's turn.
func TestOrphanWhosePluginHangs(t *testing.T) {
	n, f := newFake(t)
	k := &kept{}
	synctest.Test(t, func(t *testing.T) {
		k.events, k.ends = make(chan *events.Envelope), make(chan error)
		c := k.client(t, n)
		for _, id := range []string{"hangs", "next"} {
			if err := n.connect(t.Context(), &nodev1.VM{Namespace: "a", Id: id}, nics); err != nil {
				t.Fatal(err)
			}
		}
		n.plugins = func() (leases, error) { return hanging{f, "a-hangs"}, nil }
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go c.WatchDeleted(ctx)
		for _, id := range []string{"hangs", "next"} {
			k.tell(t, &eventsapi.ContainerDelete{ID: id})
		}
		synctest.Wait()
		if diff := cmp.Diff([]string{"a/hangs"}, n.made()); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
		begun := time.Now()
		unlock, err := c.serial.lock(t.Context(), &nodev1.VM{Namespace: "a", Id: "hangs"})
		if err != nil || time.Since(begun) > undoTimeout {
			t.Fatalf("its turn comes after %v: %v", time.Since(begun), err)
		}
		unlock()
	})
}

// hanging is CNI that never ends with one of its leases.
type hanging struct {
	leases
	id string
}

func (h hanging) Remove(ctx context.Context, id, path string, opts ...gocni.NamespaceOpts) error {
	if id == h.id {
		<-ctx.Done()
		return ctx.Err()
	}
	return h.leases.Remove(ctx, id, path, opts...)
}

// A user who deletes a container and runs one of its name finds its lease free.
func TestDeletedIsFreed(t *testing.T) {
	n, _ := newFake(t)
	k := &kept{all: map[string]bool{"a/kept": true}}
	synctest.Test(t, func(t *testing.T) {
		k.events, k.ends = make(chan *events.Envelope), make(chan error)
		c := k.client(t, n)
		for _, id := range []string{"kept", "gone", "later"} {
			if err := n.connect(t.Context(), &nodev1.VM{Namespace: "a", Id: id}, nics); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); c.WatchDeleted(ctx) }()
		tell := func(event any) {
			k.tell(t, event)
			synctest.Wait()
		}
		tell(&eventsapi.ContainerCreate{ID: "later"}) // not asked for
		tell(&eventsapi.ContainerDelete{ID: "kept"})  // made anew since
		tell(&eventsapi.ContainerDelete{ID: "gone"})
		tell(&eventsapi.ContainerDelete{ID: "never made"})
		if diff := cmp.Diff([]string{"a/kept", "a/later"}, n.made()); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
		k.ends <- errors.New("containerd restarts")
		time.Sleep(resubscribe + time.Second)
		tell(&eventsapi.ContainerDelete{ID: "later"})
		if diff := cmp.Diff([]string{"a/kept"}, n.made()); diff != "" || k.subs != 2 {
			t.Errorf("after a restart of containerd, subscribed %d times: left (-want +got):\n%s", k.subs, diff)
		}
		cancel()
		<-ended
	})
}

// On a node without descriptors the networks that were made cannot be listed: that is an error, and
// not that there are none.
func TestOrphansWithoutDescriptors(t *testing.T) {
	n, _ := newFake(t)
	c := (&kept{all: map[string]bool{}}).client(t, n)
	vm := &nodev1.VM{Namespace: "a", Id: "gone"}
	if err := n.connect(t.Context(), vm, nics); err != nil {
		t.Fatal(err)
	}
	restore := fdtest.Exhaust(t, 0)
	err := c.Orphans(t.Context())
	restore()
	if err == nil || len(n.made()) != 1 {
		t.Errorf("without descriptors: %v, left %v", err, n.made())
	}
	if err := c.Orphans(t.Context()); err != nil || len(n.made()) != 0 {
		t.Errorf("with them again: %v, left %v", err, n.made())
	}
}
