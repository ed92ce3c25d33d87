package record

import (
	"regexp"
	"strings"

	"github.com/google/uuid"
)

// memberForm is how a member of a set may be called, in memberMax bytes at most.
var memberForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

const memberMax = 63

// IsUID reports whether a name has the form of a VM's uid: a UUID, or UUID.MEMBER of a member of a set. The last part
// of a repository has that form, and so has a VM's directory in a layout.
func IsUID(name string) bool {
	id, member, ofSet := strings.Cut(name, ".")
	return uuid.Validate(id) == nil && (!ofSet || len(member) <= memberMax && memberForm.MatchString(member))
}
