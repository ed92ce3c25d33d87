package main

import (
	"slices"
	"strings"
	"testing"
)

// A right that no request used, and a request that had no right, are both told, unless they are excused.
func TestCompare(t *testing.T) {
	const roles = `kind: ServiceAccount
---
kind: ClusterRole
rules:
- apiGroups: [godwit.dev]
  resources: [vmrecords, virtualmachines/finalizers]
  verbs: [get, update]
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
`
	const audit = `{"verb":"get","user":{"username":"admin"},"impersonatedUser":{"username":"` + accountPrefix +
		`godwit-operator"},"objectRef":{"resource":"vmrecords","apiGroup":"godwit.dev"}}
{"verb":"patch","user":{"username":"` + accountPrefix +
		`godwit-operator"},"objectRef":{"resource":"pods","subresource":"status"}}
{"verb":"delete","user":{"username":"` + accountPrefix + `godwit-operator"},"objectRef":{"resource":"nodes"},
`
	const denied = `{"verb":"delete","user":{"username":"` + accountPrefix + `godwit-operator"},"objectRef":{` +
		`"resource":"nodes"},"annotations":{"authorization.k8s.io/decision":"forbid"}}
{"verb":"get","user":{"username":"` + accountPrefix + `another"},"objectRef":{"resource":"secrets"}}
`
	granted, used, refused := map[right]bool{}, map[right]bool{}, map[right]bool{}
	if err := readRoles(strings.NewReader(roles), "godwit-operator", granted); err != nil {
		t.Fatal(err)
	}
	if err := readAudit(strings.NewReader(audit+denied), used, refused); err != nil {
		t.Fatal(err)
	}
	want := []string{"refused godwit-operator delete nodes", "unused godwit-operator update godwit.dev/vmrecords"}
	if got := compare(granted, used, refused, ""); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	excuses := "# a comment of five words or more\n" + want[0] + " a test asks\n" + want[1] + " because\n"
	if got := compare(granted, used, refused, excuses); len(got) > 0 {
		t.Errorf("with excuses: %q", got)
	}
}
