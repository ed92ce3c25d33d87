package soak

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/integration/images"
)

// guest is a name that a VM may have, with a UDP port of its own for the VM's beacons: what is
// heard there tells which VM runs under that name, and that no second one does.
type guest struct {
	name string
	port string
	pod  *pod // nil: it is a container of ctr or godwit

	mu      sync.Mutex
	nonce   string   // of the VM that there is; empty: none
	tried   bool     // a run was ordered whose result is not known
	fresh   bool     // it has the network that ctr made, whose lease is not given back
	made    bool     // by godwit run: it can be stopped and started again
	begins  int      // times that its container was ordered to begin anew, with a nonce that was not heard yet
	excused string   // what the schedule did to it that may have ended it
	away    string   // the node where that was done, which did not own the VM
	adopted string   // the node where containerd may have no task of it: its shim was killed there
	hung    []string // nodes on which a fault keeps its shim from answering
	busy    bool     // a verb is at it
	heard   map[string]sighting
	retired map[string]time.Time // when VMs of the past were removed
	wrong   []string
}

// sighting is the last beacon of a nonce.
type sighting struct {
	counter uint64
	at      time.Time
	from    string
}

// late is how long a beacon may be on its way.
const late = 2 * time.Second

// listen hears the guest until the socket is closed.
func (g *guest) listen(conn net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		var b images.Beacon
		if err == nil && json.Unmarshal(buf[:n], &b) == nil && len(b.Nonce) >= 16 {
			host, _, _ := net.SplitHostPort(from.String())
			g.noteBeacon(b, host, time.Now())
		}
	}
}

// noteBeacon notes a beacon. Counters of one nonce only grow: one that comes twice, or after a larger
// one, is of a second runner, or of an older state that runs again.
func (g *guest) noteBeacon(b images.Beacon, from string, at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	last := g.heard[b.Nonce]
	if b.Counter <= last.counter {
		g.blame("the VM ran twice: %s.. told %d after %d, from %s and %s", b.Nonce[:8], b.Counter, last.counter,
			from, last.from)
	}
	if gone, ok := g.retired[b.Nonce]; ok && at.Sub(gone) > late {
		g.blame("a VM that was removed runs: %s.. told %d from %s, %.1f s after its end", b.Nonce[:8], b.Counter, from,
			at.Sub(gone).Seconds())
		g.retired[b.Nonce] = at.Add(time.Hour) // told once
	}
	g.heard[b.Nonce] = sighting{max(b.Counter, last.counter), at, from}
}

// mostBlames of a guest are told between two judgements: a second runner is heard many times.
const mostBlames = 5

func (g *guest) blame(format string, args ...any) {
	if len(g.wrong) < mostBlames {
		g.wrong = append(g.wrong, "VM "+g.name+": "+fmt.Sprintf(format, args...))
	}
}

// blames answers what was wrong since the last call.
func (g *guest) blames() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	wrong := g.wrong
	g.wrong = nil
	return wrong
}

// known takes a VM that a run has made, of which its client could not say that it is there. It answers the nonces of
// VMs that were not ordered.
func (g *guest) known() (strangers []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for nonce := range g.heard {
		_, retired := g.retired[nonce]
		switch {
		case retired || nonce == g.nonce:
		case g.nonce == "" && g.tried:
			g.nonce, g.tried = nonce, false
		case g.nonce != "" && g.begins > 0: // the same disk, and a memory of its own
			g.begins--
			g.retired[g.nonce], g.nonce = time.Now(), nonce
		default:
			strangers = append(strangers, nonce[:8])
		}
	}
	return strangers
}

func (g *guest) last() sighting {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.heard[g.nonce]
}

func (g *guest) set(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
}

// excuse notes what may have ended the VM.
func (g *guest) excuse(why string) { g.set(func() { g.excused, g.away = why, "" }) }

// hang notes that a fault keeps the guest's shim on a node from answering, until heal.
func (g *guest) hang(node string) (heal func()) {
	g.set(func() { g.hung = append(g.hung, node) })
	return func() {
		g.set(func() {
			if i := slices.Index(g.hung, node); i >= 0 {
				g.hung = slices.Delete(g.hung, i, i+1)
			}
		})
	}
}

// putBack notes that the store will be, or was, put back to before a verb came by. g.mu is held.
func (g *guest) putBack() {
	if g.excused == "" || g.away != "" {
		g.excused, g.away = putBack, ""
	}
}

// ownerUntouched reports whether the VM has an owner that nothing was done to: what excuses its end says
// nothing then.
func (g *guest) ownerUntouched(rec *nodev1.Record) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	owner := rec.GetOwner().GetNode()
	return g.away != "" && owner != "" && owner != g.away && !record.IsLost(rec)
}

func (g *guest) excuses() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.excused
}

func (g *guest) vm() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.nonce
}

// claim keeps other verbs away from the guest, if none is at it.
func (g *guest) claim() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	free := !g.busy
	g.busy = true
	return free
}

// retire ends what is known of a VM that was removed.
func (g *guest) retire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for nonce := range g.heard {
		if _, before := g.retired[nonce]; !before {
			g.retired[nonce] = time.Now()
		}
	}
	g.nonce, g.excused, g.away, g.adopted = "", "", "", ""
	g.tried, g.fresh, g.made, g.begins = false, false, false, 0
}

// stamp is what each line of the guest's file has of its nonce.
func (g *guest) stamped(line string) bool {
	nonce := g.vm()
	return len(nonce) >= 16 && strings.HasPrefix(strings.TrimSpace(line), "1 "+nonce[:16])
}
