package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// rename gives the VM another name. All other verbs call it by its id.
func (a *act) rename(ctx context.Context) error {
	return a.godwit(ctx, a.owner, "rename", a.g.name, a.id)
}

// pin names and pins a snapshot of the VM, and unpins it. Between the two nothing may delete it.
func (a *act) pin(ctx context.Context) error {
	asked := a.owner
	if asked == nil { // it sleeps
		asked = a.asked
	}
	out, err := asked.RunGodwit(ctx, "snapshot", "ls", "-o", "json", a.g.name)
	if err != nil {
		return err
	}
	var list struct{ Snapshots []struct{ Digest string } }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return fmt.Errorf("read the list of snapshots: %w: %s", err, out)
	}
	if len(list.Snapshots) == 0 {
		return nil
	}
	digest := list.Snapshots[0].Digest // the oldest, which the retention rule takes first
	err = a.godwit(ctx, asked, "snapshot", "pin", "--name", a.id, digest)
	if exitCode(err) == absentCode { // it was deleted since it was listed
		return nil
	}
	if err != nil {
		return err
	}
	err = a.godwit(ctx, asked, "snapshot", "verify", digest)
	if exitCode(err) == absentCode && a.g.excuses() == "" {
		a.violation("VM %s: its snapshot %s was pinned, and is gone: %v", a.g.name, digest, err)
	}
	if err != nil {
		return err
	}
	return a.godwit(ctx, asked, "snapshot", "unpin", digest)
}

// copy takes a file into the VM and back: it is the same, or there is an error.
func (a *act) copy(ctx context.Context) error {
	dir, err := os.MkdirTemp(a.Dir, "copy")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	there, back := filepath.Join(dir, "there"), filepath.Join(dir, "back")
	content := bytes.Repeat([]byte(a.id+"\n"), 1<<14)
	if err := os.WriteFile(there, content, 0o644); err != nil {
		return err
	}
	if err := a.godwit(ctx, a.owner, "cp", there, a.g.name+":/copied"); err != nil {
		return err
	}
	if err := a.godwit(ctx, a.owner, "cp", a.g.name+":/copied", back); err != nil {
		return err
	}
	got, err := os.ReadFile(back)
	if err == nil && !bytes.Equal(got, content) && a.g.excuses() == "" && a.g.vm() == a.begun {
		a.violation("VM %s gives back another file than it was given: %d bytes, begins with %.60q", a.g.name, len(got), got)
	}
	return err
}
