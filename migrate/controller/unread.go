package controller

import (
	"errors"
	"fmt"
	"slices"

	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// unread tells in a list which records cannot be read. The others are served. It answers any other error.
func unread(resp *nodev1.ListResponse, err error) error {
	var some *store.UnreadError
	if !errors.As(err, &some) {
		return err
	}
	for _, u := range some.All {
		resp.Unread = append(resp.Unread, u.VM.GetNamespace()+"/"+u.VM.GetId())
	}
	slices.Sort(resp.Unread)
	return nil
}

// whole refuses a list for uids without each of them while a record cannot be read: who asks for a uid deletes what
// no record has.
func whole(req *nodev1.ListRequest, resp *nodev1.ListResponse, found store.Found) error {
	if err := unread(resp, store.UnreadOf(found.Unread)); err != nil || len(found.Unread) == 0 {
		return err
	}
	for _, uid := range req.GetUids() {
		if !slices.ContainsFunc(found.Records, func(r *nodev1.Record) bool { return r.GetUid() == uid }) {
			return fmt.Errorf("whether a VM has uid %s is not known: %w", uid, store.UnreadOf(found.Unread))
		}
	}
	return nil
}
