package soak

import (
	"os"
	"path/filepath"
	"strings"

	"godwit.dev/godwit/integration/harness"
)

// giveBack does what nobody does for a VM that ended in the network that ctr made for it: its
// lease and its result of CNI go.
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
