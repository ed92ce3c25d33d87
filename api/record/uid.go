package record

import (
	"regexp"
	"strings"

	"github.com/google/uuid"
)

// memberForm is how a member of a set may be called, in memberMax bytes at most.
var memberForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

const memberMax = 63

// IsUUID reports whether a name is a UUID as it is written, in small letters: no other name means the same VM.
func IsUUID(name string) bool {
	id, err := uuid.Parse(name)
	return err == nil && id.String() == name
}

// IsUID reports whether a name has the form of a VM's uid: a UUID, or UUID.MEMBER of a member of a set. The last part
// of a repository has that form, and so has a VM's directory in a layout.
func IsUID(name string) bool {
	id, member, ofSet := strings.Cut(name, ".")
	return IsUUID(id) && (!ofSet || len(member) <= memberMax && memberForm.MatchString(member))
}
