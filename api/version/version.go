// Package version names the build of the program it is linked into, and the version of
// every protocol and format that this build speaks. It is the one table of them: what
// encodes or decodes takes its number from here, and every program prints all of it.
package version

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
)

// Version and Commit are set by the linker (see the Makefile).
var (
	Version = "devel"
	Commit  = "unknown"
)

// Versions of protocols between running programs, and of formats that are read after the program
// that wrote them has ended. A number changes when a reader of the old one would go wrong;
// docs/reference/compatibility.md has the rules.
const (
	Agent   = 1 // godwit.agent.v1: shim and guest
	Session = 1 // the frames below it
	Machine = 1 // godwit.machine.v1: godwitd and shim
	Node    = 1 // godwit.node.v1: command line, daemons and records
	Pages   = 1 // the stream of a live move: source and destination

	Journal  = 2 // node.json of a VM on its node: 1 is written where there is no pod
	Records  = 1 // records.db of the controller
	Spec     = 2 // the description of a VM, in journal and snapshot: 1 is written where there is no pod
	Snapshot = 1 // manifest and config of a snapshot
	Index    = 1 // its index of pages, with frames and packs
	Table    = 3 // the page table in the directory of a RAM file
)

// KnowsJournal reports whether this build reads a journal of version v. Shim and daemon both read them.
func KnowsJournal(v int) bool { return v >= 1 && v <= Journal }

// PagesALPN is what the ends of a live move's stream call it in their TLS handshake.
var PagesALPN = fmt.Sprintf("godwit-pages/%d", Pages)

// Known is a protocol or format with the version that this build writes.
type Known struct {
	Name    string
	Version int
}

// All lists every protocol, then every format.
func All() []Known {
	return []Known{
		{"agent", Agent}, {"session", Session}, {"machine", Machine}, {"node", Node}, {"pages", Pages},
		{"journal", Journal}, {"records", Records}, {"spec", Spec}, {"snapshot", Snapshot}, {"index", Index},
		{"table", Table},
	}
}

// Document is what a program says of its build.
type Document struct {
	Program   string         `json:"program"`
	Version   string         `json:"version"`
	Commit    string         `json:"commit"`
	Go        string         `json:"go"`
	Protocols map[string]int `json:"protocols"` // and formats
}

// Of is the document of a program.
func Of(program string) Document {
	d := Document{Program: program, Version: Version, Commit: Commit, Go: runtime.Version(), Protocols: map[string]int{}}
	for _, k := range All() {
		d.Protocols[k.Name] = k.Version
	}
	return d
}

// Write prints what program it is, as text or as one JSON document.
func Write(w io.Writer, program string, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(Of(program))
	}
	var numbers []string
	for _, k := range All() {
		numbers = append(numbers, fmt.Sprintf("%s v%d", k.Name, k.Version))
	}
	_, err := fmt.Fprintf(w, "%s %s (%s, %s)\nprotocols: %s\n", program, Version, Commit, runtime.Version(),
		strings.Join(numbers, ", "))
	return err
}
