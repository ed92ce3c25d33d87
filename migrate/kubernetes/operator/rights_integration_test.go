//go:build integration

package operator

import (
	"testing"

	authorization "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A VMSnapshot is a person's: the operator may not delete it, and garbage collection removes one that has an owner. It
// may delete what it makes of it, the work order.
func TestOperatorDeletesNoSnapshot(t *testing.T) {
	operator, err := client.New(server.Account("godwit-operator"), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for resource, want := range map[string]bool{"vmsnapshots": false, "vmsnapshotcontents": true} {
		for _, verb := range []string{"delete", "deletecollection"} {
			review := &authorization.SelfSubjectAccessReview{Spec: authorization.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorization.ResourceAttributes{Namespace: "default", Group: "godwit.dev",
					Resource: resource, Verb: verb}}}
			if err := operator.Create(t.Context(), review); err != nil {
				t.Fatal(err)
			}
			if got := review.Status.Allowed; got != (want && verb == "delete") {
				t.Errorf("the operator may %s %s: %t", verb, resource, got)
			}
		}
	}
}
