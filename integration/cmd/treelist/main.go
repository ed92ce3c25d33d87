// Command treelist prints the canonical list of a directory tree. Built without cgo it
// runs in any guest: the tests compare what the guest sees with what was packed.
package main

import (
	"fmt"
	"os"

	"godwit.dev/godwit/shim/rootfs/treelist"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: treelist DIRECTORY [NAME TO SKIP]...")
		os.Exit(2)
	}
	if err := treelist.Write(os.Stdout, os.Args[1], os.Args[2:]...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
