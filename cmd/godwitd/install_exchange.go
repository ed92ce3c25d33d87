package main

import (
	"errors"
	"fmt"
	"io/fs"
)

// names are how files of a node get their names, and lose them.
type names interface {
	Link(from, to string) error
	Rename(from, to string) error
	Remove(name string) error
}

// next is the name of a file that is not in its place yet, before the one of a file that was in it.
func next(name string) string   { return name + ".new" }
func before(name string) string { return name + ".old" }

// exchange gives all files of a node their names, or none.
type exchange struct {
	names
	sync  func() error
	files []string
	had   map[string]bool // those that were in their places before
}

// run gives each file that was in a place a second name first, by which an error puts it back. An exchange that was
// killed is made up for by the next one.
func (e *exchange) run() error {
	e.had = map[string]bool{}
	for _, name := range e.files {
		err := remove(e, before(name))
		if err == nil {
			err = e.Link(name, before(name))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(fmt.Errorf("keep the old %s: %w", name, err), e.clear())
		}
		e.had[name] = err == nil
	}
	for i, name := range e.files {
		if err := e.Rename(next(name), name); err != nil {
			return errors.Join(fmt.Errorf("install %s: %w", name, err), e.back(e.files[:i]))
		}
	}
	if err := e.sync(); err != nil {
		return errors.Join(fmt.Errorf("make the new names durable: %w", err), e.back(e.files))
	}
	return e.clear()
}

// back gives these places to what was in them.
func (e *exchange) back(files []string) (err error) {
	for _, name := range files {
		if e.had[name] {
			err = errors.Join(err, e.Rename(before(name), name))
		} else {
			err = errors.Join(err, remove(e, name))
		}
	}
	if err = errors.Join(err, e.sync()); err != nil {
		return fmt.Errorf("the node may have old and new files now, mend its disk and install again: %w", err)
	}
	return e.clear()
}

// clear removes the names that no file is to keep.
func (e *exchange) clear() error {
	err := unput(e, e.files)
	for _, name := range e.files {
		err = errors.Join(err, remove(e, before(name)))
	}
	return err
}

// remove a name, if it is there.
func remove(n names, name string) error {
	if err := n.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
