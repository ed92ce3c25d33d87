// Command disks makes the images of the VM disks' tests, for a host that lacks what makes
// them: the ground of the KVM ring.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

func main() {
	out := flag.String("out", "disks.tar", "file for the images")
	flag.Parse()
	if err := run(*out); err != nil {
		fmt.Fprintln(os.Stderr, "disks:", err)
		os.Exit(1)
	}
}

func run(out string) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	bin := filepath.Join(root, "bin")
	return images.WriteVMDisks(context.Background(), filepath.Join(bin, "debs"), filepath.Join(bin, "guest"),
		harness.NestedCmdline, out)
}
