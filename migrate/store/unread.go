package store

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Unread is a record that is there and cannot be read. It is in no list, and so a list proves nothing of its VM.
type Unread struct {
	VM  *nodev1.VM
	UID string // of the VM; empty: not known
	Err error
}

// UnreadError is the error of a list that has all records but these.
type UnreadError struct{ All []Unread }

// Error implements error.
func (e *UnreadError) Error() string {
	const most = 8
	texts := []string{}
	for _, u := range e.All[:min(most, len(e.All))] {
		texts = append(texts, u.Err.Error())
	}
	if more := len(e.All) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// Unwrap gives the error its class.
func (e *UnreadError) Unwrap() error { return errdefs.ErrDataLoss }

// UnreadOf is that error; nil: all was read.
func UnreadOf(all []Unread) error {
	if len(all) == 0 {
		return nil
	}
	return &UnreadError{all}
}

// MayHave reports whether one of these may be the record of a VM with that uid.
func MayHave(all []Unread, uid string) bool {
	for _, u := range all {
		if u.UID == "" || u.UID == uid {
			return true
		}
	}
	return false
}
