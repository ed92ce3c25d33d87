package soak

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"godwit.dev/godwit/integration/harness"
)

// stride is how many addresses apart those of two runs are.
const stride = 3

// separateAddresses has the next VM that is run on a node get an address that no VM has had. host-local goes on after
// the one that was reserved last, which may have come with a VM of another node. It knows nothing of those that have
// left with a VM. Runs at once are why there is a stride.
func (w *world) separateAddresses(n *harness.Node) error {
	i := slices.Index(w.Nodes(), n)
	last, ok := harness.Address(i, stride*int(w.ran[i].Add(1)))
	if !ok {
		return fmt.Errorf("node %s has no address left that none has had", n.Name)
	}
	dir := filepath.Join(n.Root(), "var/lib/cni/networks/godwit")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "last_reserved_ip.0"), []byte(last), 0o644)
}

// giveBack does what no other program does for a VM that ended in the network that ctr made for it: its lease and its
// result of CNI go.
func giveBack(n *harness.Node, vm string) error {
	for _, dir := range []string{"networks/godwit", "results"} {
		dir = filepath.Join(n.Root(), "var/lib/cni", dir)
		files, err := os.ReadDir(dir)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		for _, f := range files {
			path := filepath.Join(dir, f.Name())
			data, err := os.ReadFile(path)
			if err != nil || f.IsDir() {
				continue // given back meanwhile
			}
			if strings.Contains(string(data), "default-"+vm+"\r") || strings.Contains(f.Name(), "default-"+vm+"-") {
				if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
					return err
				}
			}
		}
	}
	return nil
}
