// Package failpoint marks the places at which a test of crashes may hold a program, and kill
// it there: before and after each write of a record and each call that changes something.
// A point needs no list: it registers itself when a program passes it.
//
// Programs that are built without the tag `points` have none: all of this is empty there.
package failpoint

// EnvDir names the directory in which programs note the points that they pass, and find
// those at which they are held. Variables in it are expanded. See Dir.
const EnvDir = "GODWIT_POINTS"

// AsksName is a file in that directory. As long as it is there, a containerd's calls to a shim that change nothing are
// points too.
const AsksName = "asks"

// Sides of a point.
const (
	Before = "before"
	After  = "after"
)

// Record is a write of a durable record, which leads to phase.
func Record(kind, phase string, write func() error) error {
	if !Enabled {
		return write()
	}
	pass(kind+"."+phase, Before)
	err := write()
	if err == nil {
		pass(kind+"."+phase, After)
	}
	return err
}
