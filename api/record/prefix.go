package record

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

var prefixForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+$`)

// prefixMax is the longest prefix, in bytes.
const prefixMax = 512

// CheckPrefix refuses what is no prefix of repositories of a registry. A directory is one node's own: no record and no
// order names it.
func CheckPrefix(prefix string) error {
	if !prefixForm.MatchString(prefix) || len(prefix) > prefixMax || InLayout(prefix) {
		return fmt.Errorf("prefix %.80q of repositories: use HOST[:PORT]/PATH of a registry: %w", prefix,
			errdefs.ErrInvalidArgument)
	}
	return nil
}

// Repository is where the snapshots of a VM go: below the prefix that its record says, else below the given one, which
// is that of a registry, or store.LayoutPrefix and a directory. Empty: nowhere.
func Repository(rec *nodev1.Record, prefix string) string {
	if prefix = cmp.Or(rec.GetPrefix(), prefix); prefix == "" {
		return ""
	}
	return prefix + "/" + rec.GetUid()
}

// Given reports whether a VM's record, or the order of an operation, says that a repository is where its snapshots go.
func Given(rec *nodev1.Record, op *nodev1.Operation, repository string) bool {
	prefix, own := strings.CutSuffix(repository, "/"+rec.GetUid())
	return own && rec.GetUid() != "" && prefix != "" && (prefix == rec.GetPrefix() || prefix == op.GetPrefix())
}

// IsGiven is Given, or one of the VM's snapshots lies there because an order said so. No node names such a place.
func IsGiven(rec *nodev1.Record, repository string) bool {
	return Given(rec, rec.GetOperation(), repository) || slices.ContainsFunc(rec.GetSnapshots(),
		func(ref *nodev1.SnapshotRef) bool { return ref.GetGiven() && ref.GetRepository() == repository })
}
