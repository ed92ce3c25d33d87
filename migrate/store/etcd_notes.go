package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"go.etcd.io/etcd/api/v3/mvccpb"
	etcd "go.etcd.io/etcd/client/v3"
)

// Note implements Notes.
func (e *Etcd) Note(ctx context.Context, kind, key string, value []byte) error {
	k := e.key("notes", []byte(kind+"/"+key))
	op := etcd.OpPut(k, string(value))
	if value == nil {
		op = etcd.OpDelete(k)
	}
	if _, err := e.txn(ctx, nil, []etcd.Op{op}, nil); err != nil {
		return fmt.Errorf("note %s %s: %w", kind, key, err)
	}
	return nil
}

// NoteNew implements Notes.
func (e *Etcd) NoteNew(ctx context.Context, kind, key string, value []byte) error {
	k := e.key("notes", []byte(kind+"/"+key))
	resp, err := e.txn(ctx, []etcd.Cmp{etcd.Compare(etcd.CreateRevision(k), "=", 0)},
		[]etcd.Op{etcd.OpPut(k, string(value))}, nil)
	if err == nil && !resp.Succeeded {
		err = errdefs.ErrAlreadyExists
	}
	if err != nil {
		return fmt.Errorf("note %s %s: %w", kind, key, err)
	}
	return nil
}

// NoteOf implements Notes.
func (e *Etcd) NoteOf(ctx context.Context, kind, key string) (value []byte, there bool, err error) {
	err = e.get(ctx, "notes", []string{kind + "/" + key}, func(found []*mvccpb.KeyValue) error {
		for _, kv := range found {
			value, there = kv.Value, true
		}
		return nil
	})
	if err != nil {
		return nil, false, fmt.Errorf("read note %s %s: %w", kind, key, err)
	}
	return value, there, nil
}

// Notes implements Notes.
func (e *Etcd) Notes(ctx context.Context, kind, after string) ([]Note, error) {
	found, err := e.list(ctx, "notes/"+kind+"/", after)
	if err != nil {
		return nil, fmt.Errorf("read notes of %s: %w", kind, err)
	}
	notes := make([]Note, len(found))
	for i, kv := range found {
		notes[i] = Note{Key: strings.TrimPrefix(string(kv.Key), e.prefix+"notes/"+kind+"/"), Value: kv.Value}
	}
	return notes, nil
}
