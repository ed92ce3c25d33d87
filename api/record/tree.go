package record

import (
	"cmp"
	"slices"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Branch is one snapshot in the tree of its VM.
type Branch struct {
	*nodev1.SnapshotInfo
	Depth int // how many forks away from the VM's newest line; 0: on it
}

// Tree orders the snapshots of one VM by descent, from its beginnings. A line of descent keeps its depth. Where a VM
// went back to an older snapshot and on from there, the line that was left comes first, one deeper. What contradicts
// itself, as parents in a ring, is listed all the same, each snapshot once.
func Tree(all []*nodev1.SnapshotInfo) []Branch {
	t := &tree{children: map[string][]*nodev1.SnapshotInfo{}, seen: map[*nodev1.SnapshotInfo]bool{},
		newest: map[*nodev1.SnapshotInfo]int64{}}
	all = slices.Clone(all)
	slices.SortStableFunc(all, byAge)
	known := map[string]bool{}
	for _, s := range all {
		known[s.GetDigest()] = true
	}
	var roots []*nodev1.SnapshotInfo
	for _, s := range all {
		if p := s.GetParent(); p != "" && known[p] && p != s.GetDigest() {
			t.children[p] = append(t.children[p], s)
		} else {
			roots = append(roots, s)
		}
	}
	for _, s := range append(roots, all...) { // after the roots: what hangs on none of them
		t.line(s, 0)
	}
	return t.out
}

func byAge(a, b *nodev1.SnapshotInfo) int {
	return cmp.Or(cmp.Compare(a.GetCreatedUnixNano(), b.GetCreatedUnixNano()), cmp.Compare(a.GetDigest(), b.GetDigest()))
}

type tree struct {
	children map[string][]*nodev1.SnapshotInfo // by the parent's digest, oldest first
	newest   map[*nodev1.SnapshotInfo]int64    // of the snapshot and what descends from it: when the last was made
	seen     map[*nodev1.SnapshotInfo]bool
	out      []Branch
}

// line puts down a snapshot and what descends from it. A ring ends where it began.
func (t *tree) line(s *nodev1.SnapshotInfo, depth int) {
	for s != nil && !t.seen[s] {
		t.seen[s] = true
		t.out = append(t.out, Branch{s, depth})
		children := slices.Clone(t.children[s.GetDigest()])
		slices.SortStableFunc(children, func(a, b *nodev1.SnapshotInfo) int {
			return cmp.Compare(t.last(a), t.last(b))
		})
		s = nil
		if n := len(children); n > 0 {
			for _, left := range children[:n-1] {
				t.line(left, depth+1)
			}
			s = children[n-1]
		}
	}
}

// last is when the newest descendant was made.
func (t *tree) last(s *nodev1.SnapshotInfo) int64 {
	if at, known := t.newest[s]; known {
		return at
	}
	at := s.GetCreatedUnixNano()
	t.newest[s] = at // of a ring
	for _, child := range t.children[s.GetDigest()] {
		at = max(at, t.last(child))
	}
	t.newest[s] = at
	return at
}

// Why says in a word or two why a snapshot was made.
func Why(s *nodev1.SnapshotInfo) string {
	switch {
	case !s.GetCheckpoint():
		return "sleep"
	case s.GetManual():
		return "checkpoint by hand"
	}
	return "checkpoint"
}
