package bundle

import (
	"path/filepath"
	"strings"

	"godwit.dev/godwit/api/spec"
)

// Program is what the container's first process executes, and where the guest looks for it.
type Program struct {
	Name    string   // as the command names it: with a slash a path, else looked for in Search
	Search  []string // directories of the process's PATH
	Dir     string   // the process's working directory
	Covered []string // paths where the guest sees something else than the root file system
}

// guestViews are what the guest itself puts over each root file system.
var guestViews = []string{"/proc", "/sys", "/dev"}

// Program of the container's init; none for a VM disk or a pod.
func (b *Bundle) Program() (p Program) {
	c := b.container()
	if c == nil || c.OCI == nil || c.OCI.Process == nil || len(c.OCI.Process.Args) == 0 {
		return p
	}
	process := c.OCI.Process
	p = Program{Name: process.Args[0], Dir: process.Cwd, Covered: append([]string(nil), guestViews...)}
	for _, variable := range process.Env {
		if value, ok := strings.CutPrefix(variable, "PATH="); ok {
			p.Search = filepath.SplitList(value) // the last one counts
		}
	}
	for _, m := range c.OCI.Mounts {
		p.Covered = append(p.Covered, m.Destination)
	}
	for _, copied := range b.Copies {
		p.Covered = append(p.Covered, copied.Destination)
	}
	if b.Member == nil {
		return p
	}
	for _, v := range b.Member.Container.Mounts {
		p.Covered = append(p.Covered, v.Target)
	}
	if t := b.Member.Termination.Destination; t != "" {
		p.Covered = append(p.Covered, t)
	}
	return p
}

// container is what the task runs; nil for a pod.
func (b *Bundle) container() *spec.Container {
	if b.Member != nil {
		return &b.Member.Container.Container
	}
	return b.Spec.Container
}
