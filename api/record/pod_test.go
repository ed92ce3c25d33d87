package record

import "testing"

// TestSandboxVM: the VM of a container has the container's id, but for the sandbox of a pod with a name for its VM.
func TestSandboxVM(t *testing.T) {
	const named = `{"annotations": {"io.kubernetes.cri.sandbox-namespace": "team", "godwit.dev/vm": "web"}}`
	for _, c := range []struct{ kind, oci, want string }{
		{"sandbox", named, "team.web"}, {"container", named, "id"}, {"", named, "id"}, {"sandbox", `{}`, "id"},
		{"sandbox", `no JSON`, "id"}, {"sandbox", ``, "id"},
	} {
		if got := SandboxVM("id", map[string]string{criKind: c.kind}, []byte(c.oci)); got != c.want {
			t.Errorf("the VM of a container of kind %q with %s is %s, not %s", c.kind, c.oci, got, c.want)
		}
	}
	if !MayBePod("team.web") || MayBePod("web") {
		t.Error("an id of a pod's VM is not told from another one")
	}
}
