// Package snapshot stores a VM as of one instant as an OCI artifact and gives it back: RAM
// and writable disks as pages in packs, the device state, the read-only disks, and a config
// with the Spec. Push stops at a committed manifest. A VM that runs (Live) it has paused
// when little is left; it never starts one or lets one go on.
//
// A snapshot is its digest. Until its manifest is stored nothing exists, and no
// decision is taken from a tag. docs/dev/protocols/snapshot-format.md describes the format.
package snapshot

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/snapshot/format"
)

// Ref says which VM a snapshot is of and which step of which operation made it.
type Ref struct {
	VM         string `json:"vm"` // namespace/id
	UID        string `json:"uid"`
	Operation  string `json:"operation"`
	Attempt    uint32 `json:"attempt"`
	Generation uint64 `json:"generation"`
}

// A bound in an expression, {0,127} say, is as many copies of what it bounds, in the memory of
// every program that has this package: lengths are compared.
var (
	refName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	refUID  = regexp.MustCompile(`^[a-z0-9]+([._-][a-z0-9]+)*$`)
)

func isRefName(s string, most int) bool { return len(s) <= most && refName.MatchString(s) }

// Validate refuses what cannot be a repository, a tag or a name.
func (r Ref) Validate() error {
	namespace, id, _ := strings.Cut(r.VM, "/")
	switch {
	case !isRefName(namespace, 128) || !isRefName(id, 128):
		return invalid("vm", "%q is not namespace/id", r.VM)
	case len(r.UID) > 128 || !refUID.MatchString(r.UID):
		return invalid("uid", "%q", r.UID)
	case !isRefName(r.Operation, 100):
		return invalid("operation", "%q", r.Operation)
	}
	return nil
}

// Tag is the name for people.
func (r Ref) Tag() string { return record.SnapshotTag(r.Generation, r.Operation, 0) }

// Made reports whether an operation gave its manifest that tag: it is no name of somebody's.
func (r Ref) Made(tag string) bool {
	return tag == r.Tag() || tag == r.HoldTag() || tag == record.SnapshotTag(r.Generation, r.Operation, r.Attempt)
}

// Facts are what the device state depends on. A restore compares them with the destination before anything is
// reserved.
type Facts struct {
	VMM      string   `json:"vmm"`
	Version  string   `json:"version"`
	Machine  string   `json:"machine,omitempty"`
	Accel    string   `json:"accel,omitempty"`
	CPU      string   `json:"cpu,omitempty"` // model
	Features []string `json:"features,omitempty"`
	Kernel   string   `json:"kernel"` // of the host
}

// Config is the config blob of the manifest.
type Config struct {
	Version int             `json:"version"`
	Ref     Ref             `json:"ref"`
	Created time.Time       `json:"created"`
	Facts   Facts           `json:"facts"`
	Spec    *spec.Spec      `json:"spec,omitempty"`
	Resume  json.RawMessage `json:"resume,omitempty"` // the shim's own: offsets of the agent's session
	Spaces  []SpaceInfo     `json:"spaces"`
	Disks   []DiskInfo      `json:"disks,omitempty"` // read-only, in the manifest's order
	Figures Figures         `json:"figures"`
	Sealed  *Sealed         `json:"sealed,omitempty"` // instead of Spec and Resume
}

// SpaceInfo says what an address space is. Disk is empty for RAM.
type SpaceInfo struct {
	Name string `json:"name"`
	Disk string `json:"disk,omitempty"` // spec.Disk.ID
	Size int64  `json:"size"`
}

// DiskInfo is a read-only disk. Its blob is the file itself.
type DiskInfo struct {
	ID     string        `json:"id"` // spec.Disk.ID
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
}

// Figures count bytes. Pushed and Total are known after the config is written and are
// zero in it.
type Figures struct {
	RAM      uint64 `json:"ramBytes"`      // declared
	Resident uint64 `json:"residentBytes"` // of all spaces, not zero
	New      uint64 `json:"newBytes"`      // of Resident, in no parent and once
	Pushed   uint64 `json:"pushedBytes,omitempty"`
	Total    uint64 `json:"totalBytes,omitempty"` // of all blobs that the manifest lists
}

// Media types, and keys of the manifest's annotations.
const (
	ArtifactType    = "application/vnd.godwit.snapshot.v1"
	MediaTypeConfig = "application/vnd.godwit.snapshot.config.v1"
	MediaTypeState  = "application/vnd.godwit.state.v1"
	MediaTypeIndex  = "application/vnd.godwit.index.v1"
	MediaTypePack   = "application/vnd.godwit.pack.v1"
	MediaTypeDisk   = "application/vnd.godwit.disk.v1"

	AnnotationVM         = "dev.godwit.vm"
	AnnotationUID        = "dev.godwit.uid"
	AnnotationGeneration = "dev.godwit.generation"
	AnnotationOperation  = "dev.godwit.operation"
	AnnotationAttempt    = "dev.godwit.attempt"
)

// ConfigVersion that this build writes. It reads this one only.
const ConfigVersion = version.Snapshot

// Bounds of blobs that are read into memory.
const (
	maxManifest = 4 << 20
	maxConfig   = 4 << 20
	maxIndex    = format.MaxIndex
	// MaxState bounds the device state.
	MaxState = 1 << 30
	maxDisks = 64
)

// Progress of a push or a fill.
type Progress struct {
	// Step is "precopy", then in the pause "capture" and "disk", "clone" after it, "upload", "commit"; "fill", "lazy
	// fill"; "verify".
	Step  string `json:"step"`
	Done  uint64 `json:"done"` // bytes
	Total uint64 `json:"total"`

	// Waiting is why a VM that runs while it is filled has to wait; empty: it need not.
	Waiting string `json:"waiting,omitempty"`
	// Settled: such a VM has wanted no page for a moment. It is told again and again while that is so,
	// in the first seconds.
	Settled bool `json:"settled,omitempty"`

	// Of a VM that is sent to another node:
	Pass     int     `json:"pass,omitempty"`       // the first is 1
	Left     uint64  `json:"left,omitempty"`       // bytes that are due, as far as it is known
	Dirty    uint64  `json:"dirty,omitempty"`      // bytes a second, written since the pass before
	Moved    uint64  `json:"moved,omitempty"`      // bytes on the wire
	Expected float64 `json:"expectedMs,omitempty"` // of the pause, if it began now
}

func invalid(field, text string, args ...any) error {
	return fmt.Errorf("snapshot: %s: "+text+": %w", append(append([]any{field}, args...), errdefs.ErrInvalidArgument)...)
}

func mismatch(field string, got, want any) error {
	return fmt.Errorf("snapshot: %s is %v, wanted %v: %w", field, got, want, errdefs.ErrFailedPrecondition)
}
