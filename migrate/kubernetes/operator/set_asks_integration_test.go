//go:build integration

package operator

import (
	"strings"
	"testing"

	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// The records of new members of a set are made without a list of all records: the cache knows what uids they have.
func TestNewMembersListNoRecords(t *testing.T) {
	count := start(t)
	n := newNode(t)
	set := newSet("default", "asks", "main", "worker", "helper")
	create(t, set)
	for _, m := range []string{"main", "worker", "helper"} {
		n.recordOf(t, "default.asks-"+m, "is there", func(r *nodev1.Record) bool {
			return r.GetUid() == pods.MemberUIDs(set.UID, m)[0]
		})
	}
	for _, asked := range count.seen() {
		if strings.Contains(asked, "/vmrecords?") && strings.Contains(asked, "limit=") &&
			!strings.Contains(asked, "labelSelector=") {
			t.Errorf("it asked %s", asked)
		}
	}
}
