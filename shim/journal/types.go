package journal

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/shim/stdio"
)

// Resume is what a snapshot says about the task in it.
type Resume struct {
	BootID   string         `json:"bootID"`
	UptimeMS uint64         `json:"uptimeMS"`
	Init     client.Offsets `json:"init"`
	Execs    []MovedExec    `json:"execs,omitempty"` // of a VM that moves
	// NoOutput: the task had no output, as with containerd's null IO.
	NoOutput bool `json:"nowhere,omitempty"`
	// Members are the containers of a pod, in the order of the Spec's.
	Members []ResumedMember `json:"members,omitempty"`
	Ended   []EndedMember   `json:"ended,omitempty"`
	// Issued and Volumes are of a pod too: how many guest ids were given, and the ids of its volumes.
	Issued  int      `json:"issued,omitempty"`
	Volumes []string `json:"volumes,omitempty"`
}

// EndedMember is how the last container of a name ended, of a pod that has none of that name now.
type EndedMember struct {
	Name string `json:"name"`
	Exit
	// Owed: it came with the pod, and no task of that name has told it here.
	Owed bool `json:"owed,omitempty"`
}

// ResumedMember is a container of a pod: one that runs, or one that had ended.
type ResumedMember struct {
	Guest string         `json:"guest"`
	Init  client.Offsets `json:"init"`
	Ended *Exit          `json:"ended,omitempty"`
}

// Member is what is said of the container with that guest id; nil: nothing.
func (r *Resume) Member(guest string) *ResumedMember {
	for i := range r.Members {
		if r.Members[i].Guest == guest {
			return &r.Members[i]
		}
	}
	return nil
}

// EndOf is how the container with that guest id had ended; nil: it runs, or nothing is said of it.
func (r *Resume) EndOf(guest string) *Exit {
	if m := r.Member(guest); m != nil {
		return m.Ended
	}
	return nil
}

// Check refuses what no shim has written: such ids would stand for the task's init, or
// for each other.
func (r *Resume) Check() error {
	seen := map[string]bool{}
	for _, m := range r.Members {
		if m.Guest == "" || seen["member "+m.Guest] {
			return fmt.Errorf("its resume information has container %q: %w", m.Guest, errdefs.ErrDataLoss)
		}
		seen["member "+m.Guest] = true
	}
	for _, e := range r.Ended {
		if e.Name == "" || seen["ended "+e.Name] || len(r.Ended) > maxEnded {
			return fmt.Errorf("its resume information has %d containers that ended, of them %q: %w", len(r.Ended), e.Name,
				errdefs.ErrDataLoss)
		}
		seen["ended "+e.Name] = true
	}
	for _, e := range r.Execs {
		for _, id := range []string{"exec " + e.ID, "process " + e.Guest} {
			if e.ID == "" || e.Guest == "" || seen[id] {
				return fmt.Errorf("its resume information has execs %q: %w", []string{e.ID, e.Guest}, errdefs.ErrDataLoss)
			}
			seen[id] = true
		}
	}
	return nil
}

// MovedExec is an exec that runs, as the next shim finds it again.
type MovedExec struct {
	ID    string `json:"id"`    // containerd's
	Guest string `json:"guest"` // its id there
	stdio.State
}

// Names are what a guest without an agent is told in addition to its addresses. They are durable:
// a successor has no bundle to read them from.
type Names struct {
	Hostname string       `json:"hostname,omitempty"`
	DNS      []netip.Addr `json:"dns,omitempty"`
	Search   []string     `json:"search,omitempty"`
}

// Postcopy is the snapshot that RAM comes from while the VM runs.
type Postcopy struct {
	Repository string `json:"repository"`
	Digest     string `json:"digest"`
	// Whole: all pages are there. What is left is to end the wait for them.
	Whole bool `json:"whole,omitempty"`
}

// Restored is how a VM came to its RAM without a boot, for as long as it runs here.
type Restored struct {
	Mode   string `json:"mode"`             // config.RestoreEager, config.RestoreLazy or starts.Clone
	Reason string `json:"reason,omitempty"` // whose order that was, or what config.RestoreAuto found
}

// Lazy reports whether the RAM comes, or came, while the VM runs.
func (r *Restored) Lazy() bool { return r != nil && r.Mode == config.RestoreLazy }

// Notice is one that a workload has yet to get, as a command in the guest. The guest knows the
// command by ID, so that no successor of a shim that dies runs it again. The journal has it until the
// command has ended.
type Notice struct {
	Word   string `json:"word"`
	Digest string `json:"digest"`
	ID     string `json:"id"`
}

// Add adds w to those of j.
func (w Notice) Add(j *Journal) { j.Notices = append(slices.Clone(j.Notices), w) }

// Remove removes w from those of j.
func (w Notice) Remove(j *Journal) {
	j.Notices = slices.DeleteFunc(slices.Clone(j.Notices), func(other Notice) bool { return other == w })
}

// IsNotice reports whether a process of the guest is the command of a notification.
func (j *Journal) IsNotice(id string) bool {
	return slices.ContainsFunc(j.Notices, func(w Notice) bool { return w.ID == id })
}
