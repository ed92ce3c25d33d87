package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/store"
)

// A note is a ConfigMap: kind and key are in it, and its name is made of both.
const (
	noteKind  = "kind"
	noteKey   = "key"
	noteValue = "value"
)

func (s *Store) newNote(kind, key string, value []byte) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: noteName(kind, key), Namespace: s.maps.namespace,
			Labels: map[string]string{ofNote: hash(kind)}},
		Data:       map[string]string{noteKind: kind, noteKey: key},
		BinaryData: map[string][]byte{noteValue: value},
	}
}

func noteName(kind, key string) string { return "godwit-note-" + hash(kind+"\x00"+key) }

// Note implements store.Notes.
func (s *Store) Note(ctx context.Context, kind, key string, value []byte) error {
	for {
		again, err := s.note(ctx, kind, key, value)
		if err != nil {
			return fmt.Errorf("note %s %s: %w", kind, key, err)
		}
		if !again {
			return nil
		}
	}
}

// note is one try: another writer may come between.
func (s *Store) note(ctx context.Context, kind, key string, value []byte) (again bool, err error) {
	old, there, err := s.maps.get(ctx, noteName(kind, key))
	switch {
	case err != nil:
		return false, err
	case value == nil && !there:
		return false, nil
	case value == nil:
		err = s.maps.remove(ctx, old)
	default:
		o := s.newNote(kind, key, value)
		o.ResourceVersion, o.Annotations = old.ResourceVersion, old.Annotations
		_, err = s.maps.put(ctx, o)
	}
	if errdefs.IsConflict(err) || errdefs.IsAlreadyExists(err) || errdefs.IsNotFound(err) && there {
		return true, nil
	}
	return false, err
}

// NoteNew implements store.Notes.
func (s *Store) NoteNew(ctx context.Context, kind, key string, value []byte) error {
	if _, err := s.maps.put(ctx, s.newNote(kind, key, value)); err != nil && !errors.Is(err, errOvertaken) {
		return fmt.Errorf("note %s %s: %w", kind, key, err)
	}
	return nil
}

// NoteOf implements store.Notes.
func (s *Store) NoteOf(ctx context.Context, kind, key string) (value []byte, there bool, err error) {
	o, there, err := s.maps.get(ctx, noteName(kind, key))
	if err != nil {
		return nil, false, fmt.Errorf("read note %s %s: %w", kind, key, err)
	}
	if !there || o.Data[noteKind] != kind || o.Data[noteKey] != key {
		return nil, false, nil
	}
	return o.BinaryData[noteValue], true, nil
}

// Notes implements store.Notes.
func (s *Store) Notes(ctx context.Context, kind, after string) (all []store.Note, err error) {
	list := func() *corev1.ConfigMapList { return &corev1.ConfigMapList{} }
	err = pages(ctx, s.maps, ofNote+"="+hash(kind), list, func(l *corev1.ConfigMapList) error {
		for _, o := range l.Items {
			if o.Data[noteKind] == kind && o.Data[noteKey] > after {
				all = append(all, store.Note{Key: o.Data[noteKey], Value: o.BinaryData[noteValue]})
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read notes of %s: %w", kind, err)
	}
	slices.SortFunc(all, func(a, b store.Note) int { return strings.Compare(a.Key, b.Key) })
	return all, nil
}
