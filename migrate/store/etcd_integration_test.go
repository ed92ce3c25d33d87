//go:build integration

package store_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// member is one etcd of a cluster, a real one.
type member struct {
	t          *testing.T
	name, dir  string
	url, peers string // where clients and the others find it
	cluster    string
	flags      []string
	cmd        *exec.Cmd
	log        *os.File
}

func newCluster(t *testing.T, n int, flags ...string) []*member {
	t.Helper()
	members, names := make([]*member, n), make([]string, n)
	for i := range members {
		name := fmt.Sprintf("m%d", i)
		members[i] = &member{t: t, flags: flags, name: name, dir: t.TempDir(), url: "http://" + freeAddress(t),
			peers: "http://" + freeAddress(t)}
		names[i] = name + "=" + members[i].peers
	}
	for _, m := range members {
		m.cluster = strings.Join(names, ",")
		m.start()
	}
	return members
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (m *member) start() {
	m.t.Helper()
	binary, err := filepath.Abs("../../bin/tools/etcd/server")
	if err != nil {
		m.t.Fatal(err)
	}
	m.log, err = os.OpenFile(filepath.Join(m.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		m.t.Fatal(err)
	}
	m.cmd = exec.Command(binary, append(m.flags, "--name", m.name, "--data-dir", filepath.Join(m.dir, "data"),
		"--listen-client-urls", m.url, "--advertise-client-urls", m.url, "--listen-peer-urls", m.peers,
		"--initial-advertise-peer-urls", m.peers, "--initial-cluster", m.cluster, "--heartbeat-interval", "50",
		"--election-timeout", "500")...)
	m.cmd.Stdout, m.cmd.Stderr, m.cmd.SysProcAttr = m.log, m.log, &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		m.t.Fatalf("start etcd (make tools builds it): %v", err)
	}
	m.t.Cleanup(m.kill)
}

func (m *member) kill() {
	if m.cmd != nil {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
		_ = m.log.Close()
		m.cmd = nil
	}
}

func urls(members []*member) (all []string) {
	for _, m := range members {
		all = append(all, m.url)
	}
	return all
}

// connect waits for an etcd that has just been started.
func connect(t *testing.T, prefix string, members []*member) *store.Etcd {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		st, err := store.OpenEtcd(t.Context(), store.EtcdConfig{Endpoints: urls(members), Prefix: prefix})
		if err == nil {
			return st
		}
		if !errdefs.IsUnavailable(err) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// The suite of all stores, with an etcd that is killed where a store is opened once more.
func TestEtcd(t *testing.T) {
	members := newCluster(t, 1)
	n := 0
	storetest.Run(t, func(t *testing.T) (store.Store, func() store.Store) {
		n++
		prefix := fmt.Sprintf("/test%d/", n)
		st := connect(t, prefix, members)
		t.Cleanup(func() { _ = st.Close() })
		return st, func() store.Store {
			members[0].kill()
			members[0].start()
			if err := st.Close(); err != nil {
				t.Fatal(err)
			}
			st = connect(t, prefix, members)
			return st
		}
	})
}

// A store of a later version, an etcd that is not there, and one that is too small.
func TestEtcdRefuses(t *testing.T) {
	members := newCluster(t, 1)
	connect(t, "/v/", members).Close()
	// /v/version 99
	put := exec.Command("curl", "-sf", members[0].url+"/v3/kv/put", "-d", `{"key":"L3YvdmVyc2lvbg==","value":"OTk="}`)
	if out, err := put.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := store.OpenEtcd(t.Context(), store.EtcdConfig{Endpoints: urls(members),
		Prefix: "/v/"}); !errdefs.IsNotImplemented(err) {
		t.Errorf("version 99: %v", err)
	}
	if _, err := store.OpenEtcd(t.Context(), store.EtcdConfig{Endpoints: []string{"ftp://x y"}}); err == nil {
		t.Error("an endpoint that is none was taken")
	}
	st := connect(t, "/other/", members)
	defer st.Close()
	members[0].kill()
	if _, err := st.List(t.Context(), "", 0); !errdefs.IsUnavailable(err) ||
		!strings.Contains(err.Error(), "controller.etcd.endpoints") {
		t.Errorf("no etcd: %v", err)
	}
}

// change is what one client did to the record: read it, or make one version into the next.
type change struct {
	read bool
	from uint64 // generation of the version that it was made from
}

// seen is what it was told; unknown: nothing.
type seen struct {
	generation uint64
	made       bool
	unknown    bool
}

// register is the record as a linearizable register with compare-and-swap.
var register = porcupine.Model{
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		now, in, out := state.(uint64), input.(change), output.(seen)
		switch {
		case in.read:
			return out.unknown || out.generation == now, now
		case out.unknown && in.from == now:
			return true, now + 1 // if it was not made, porcupine may place it after everything
		case out.unknown:
			return true, now
		case out.made:
			return in.from == now, now + 1
		}
		return in.from != now, now
	},
}

// Members of a cluster of three die, one at a time and at any moment, while records change:
// the history of all clients is one of a register with compare-and-swap, and work goes on
// between the deaths.
func TestEtcdMembersDie(t *testing.T) {
	members := newCluster(t, 3)
	vm := &nodev1.VM{Namespace: "ns", Id: "a"}
	first := connect(t, "/d/", members)
	defer first.Close()
	if _, err := first.Apply(t.Context(), vm, 0, transition.Change{Record: &nodev1.Record{Vm: vm}}); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var made atomic.Int64
	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup
	for w := range 3 {
		st := connect(t, "/d/", members)
		defer st.Close()
		note := func(in change, called time.Time, out seen) {
			op := porcupine.Operation{ClientId: w, Input: in, Call: called.UnixNano(), Output: out,
				Return: time.Now().UnixNano()}
			if out.unknown { // it may be made at any later time
				op.Return = math.MaxInt64
			}
			mu.Lock()
			history = append(history, op)
			mu.Unlock()
		}
		wg.Go(func() {
			for !stop.Load() {
				called := time.Now()
				s, err := st.Load(t.Context(), vm, transition.Asked{})
				if err != nil {
					continue
				}
				note(change{read: true}, called, seen{generation: s.Record.GetGeneration()})
				in := change{from: s.Record.GetGeneration()}
				called = time.Now()
				_, err = st.Apply(t.Context(), vm, s.Record.GetVersion(),
					transition.Change{Record: &nodev1.Record{Vm: vm, Generation: in.from + 1}})
				note(in, called, seen{made: err == nil, unknown: err != nil && !errdefs.IsConflict(err)})
				if err == nil {
					made.Add(1)
				}
			}
		})
	}
	for range 4 {
		victim := members[rand.IntN(len(members))]
		victim.kill()
		for from, deadline := made.Load(), time.Now().Add(time.Minute); made.Load() < from+10; time.Sleep(
			10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("two members of three took no change")
			}
		}
		victim.start()
	}
	stop.Store(true)
	wg.Wait()
	if r := porcupine.CheckOperationsTimeout(register, history, time.Minute); r != porcupine.Ok {
		t.Errorf("%d operations: %s", len(history), r)
	}
	t.Logf("%d operations, %d changes acknowledged", len(history), made.Load())
}
