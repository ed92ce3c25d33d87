//go:build integration

package k8s

import (
	"slices"
	"testing"
)

// TestUpgrade: images of another tag are rolled out below a VM that runs: the operators, then the nodes. The VM is
// asked on one TCP connection all the time, and its VMM is the same. Afterwards it moves live, sleeps and wakes.
func TestUpgrade(t *testing.T) {
	k := openKeeper(t)
	for _, n := range k.Nodes() {
		for _, image := range []string{"operator", "node"} {
			name := "localhost/godwit/" + image
			if _, err := n.RunCtr(t.Context(), "--namespace", "k8s.io", "images", "tag", "--force", name+":devel",
				name+":next"); err != nil {
				t.Fatal(err)
			}
		}
	}
	home := k.pod("keeper-g1-a0").node
	before, err := home.VMMs()
	if err != nil || len(before) != 1 {
		t.Fatalf("node %s has the VMMs %v: %v", home.Name, before, err)
	}
	for _, part := range [][2]string{{"deployment/godwit-operator", "operator"}, {"daemonset/godwit-node", "node"}} {
		object, image := part[0], part[1]
		roll := func(tag string) []string {
			return []string{"set", "image", "-n", system, object, "*=localhost/godwit/" + image + ":" + tag}
		}
		k.kubectl(roll("next")...)
		k.afterwards(roll("devel")...)
		k.kubectl("rollout", "status", "-n", system, "--timeout="+limit.String(), object)
		k.talks("after an upgrade of " + object)
	}
	if after, err := home.VMMs(); err != nil || !slices.Equal(before, after) {
		t.Errorf("the VMMs of node %s were %v, and are %v: %v", home.Name, before, after, err)
	}
	away := k.other(home.Name)
	k.kubectl("patch", "gvm", "keeper", "--type=merge", "-p", `{"spec": {"nodeName": "`+away+`"}}`)
	k.kubectl("wait", "gvm/keeper", "--for=jsonpath={.status.owner.node}="+away, "--timeout="+limit.String())
	k.talks("after a move that follows the upgrade")
	k.kubectl("patch", "gvm", "keeper", "--type=merge", "-p", `{"spec": {"operatingMode": "Hibernated"}}`)
	k.wait("condition=Hibernated", "gvm/keeper")
	k.kubectl("patch", "gvm", "keeper", "--type=merge", "-p", `{"spec": {"operatingMode": "Running"}}`)
	k.wait("condition=Ready", "gvm/keeper")
}
