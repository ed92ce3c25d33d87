package store

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// readable is each of what can be read. It answers the others by name.
func (s *Store) readable(ctx context.Context, selector string, take func(*v1alpha1.VMRecord, content) error) (
	unread []store.Unread, err error) {
	err = s.each(ctx, selector, func(o *v1alpha1.VMRecord) error {
		c, err := decode(o)
		if err != nil {
			unread = append(unread, unreadable(o, err))
			return nil
		}
		return take(o, c)
	})
	return unread, err
}

// unreadable is an object that cannot be read. The uid is what the record says, or else the columns for people.
func unreadable(o *v1alpha1.VMRecord, err error) store.Unread {
	u := store.Unread{VM: namedBy(o.Name), UID: o.Summary.UID, Err: err}
	rec := &nodev1.Record{}
	if len(o.Record) > 0 && proto.Unmarshal(o.Record, rec) == nil && rec.GetUid() != "" {
		u.UID = rec.GetUid()
	}
	return u
}

// MayHave reports whether an object that cannot be read may be the record of a VM with that uid.
func MayHave(o *v1alpha1.VMRecord, uid string) bool {
	_, err := decode(o)
	return err != nil && store.MayHave([]store.Unread{unreadable(o, err)}, uid)
}

// namedBy is the VM whose record has an object's name: see objectName.
func namedBy(name string) *nodev1.VM {
	if !strings.Contains(name, ".") {
		if data, err := encoding.DecodeString(name); err == nil {
			if namespace, id, ok := strings.Cut(string(data), "\x00"); ok {
				return &nodev1.VM{Namespace: namespace, Id: id}
			}
		}
	}
	return &nodev1.VM{Namespace: Kubernetes, Id: name}
}

// unreadOf are the records that a list lacks. Any other error is answered.
func unreadOf(err error) ([]store.Unread, error) {
	var some *store.UnreadError
	if errors.As(err, &some) {
		return some.All, nil
	}
	return nil, err
}

// has says whether there are deletions; nil: it is not known.
func has(some bool, unread []store.Unread) *bool {
	if !some && len(unread) > 0 {
		return nil
	}
	return &some
}
