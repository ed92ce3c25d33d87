package client

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// ParseVM reads how a user names a VM: NAMESPACE/REF, or REF in the given namespace. REF is a name, an id or the
// beginning of an id; Resolve finds out which. InvalidArgument: it is none of them.
func ParseVM(ref, namespace string) (*nodev1.VM, error) {
	space, id, found := strings.Cut(ref, "/")
	if !found {
		space, id = namespace, ref
	}
	if space == "" || id == "" || strings.Contains(id, "/") {
		return nil, fmt.Errorf("VM %q: write a name, an ID, or NAMESPACE/ID: %w", ref, errdefs.ErrInvalidArgument)
	}
	return &nodev1.VM{Namespace: space, Id: id}, nil
}

var digestRef = regexp.MustCompile(`^(sha256:)?([0-9a-f]{1,64})$`)

// ParseDigest reads how a user names a snapshot: sha256:<hex>, or <hex>, of at most 64 digits. The answer has the form
// sha256:<hex>; it is whole if it has 64 digits. InvalidArgument: it is no digest.
func ParseDigest(ref string) (digest string, whole bool, err error) {
	m := digestRef.FindStringSubmatch(ref)
	if m == nil {
		return "", false, fmt.Errorf("%q: not sha256:<hex digits>, and not the beginning of them "+
			"(godwit snapshot ls): %w", ref, errdefs.ErrInvalidArgument)
	}
	return "sha256:" + m[2], len(m[2]) == 64, nil
}

// CheckSnapshot refuses what names no snapshot: neither a digest, nor the beginning of one, nor a name.
func CheckSnapshot(ref string) error {
	if _, _, err := ParseDigest(ref); err == nil || record.CheckSnapshotName(ref) == nil {
		return nil
	}
	return fmt.Errorf("%q: write a snapshot's name, its digest sha256:<hex digits>, or the beginning of that "+
		"(godwit snapshot ls): %w", ref, errdefs.ErrInvalidArgument)
}

// AmbiguousError says that a name or a beginning is that of several. Its class is InvalidArgument.
type AmbiguousError struct {
	Kind       string   // "VM" or "snapshot"
	Ref        string   // what was written
	Candidates []string // NAMESPACE/ID, or digests; sorted
}

// shownCandidates bounds the text of an AmbiguousError.
const shownCandidates = 8

func (e *AmbiguousError) Error() string {
	shown, more := e.Candidates, ""
	if len(shown) > shownCandidates {
		shown, more = shown[:shownCandidates], fmt.Sprintf(", and %d more", len(e.Candidates)-shownCandidates)
	}
	return fmt.Sprintf("%s %q is not the only one of that name or beginning. It can be: %s%s. "+
		"Write one of them, or more of it", e.Kind, e.Ref, strings.Join(shown, ", "), more)
}

func (*AmbiguousError) Unwrap() error { return errdefs.ErrInvalidArgument }
