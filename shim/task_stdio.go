package shim

import (
	"net/url"
	"path/filepath"

	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/stdio"
)

// openStreams opens the streams of a process of the task. A logging program stays when the task ends: it leaves the
// task's cgroup.
func (t *Task) openStreams(id string, uris stdio.URIs) (*stdio.Streams, error) {
	vm := t.vm
	st, err := stdio.Open(vm.namespace, id, uris, t.logFile(uris))
	if err != nil {
		return nil, err
	}
	t.releaseLogger(st)
	return st, nil
}

// releaseLogger moves a logging program out of the task's cgroup.
func (t *Task) releaseLogger(st *stdio.Streams) {
	vm := t.vm
	if st.LoggerPID() == 0 {
		return
	}
	if err := cgroup.Leave(vm.journal.Load().Cgroup, st.LoggerPID()); err != nil {
		vm.log.Warn("move logger out of the task's cgroup", "error", err)
	}
}

// logFile answers the file that the output goes to, with its bounds. It is nil where the output goes to something
// else. A file that the client of a VM booted here has named is that client's, as with any runtime. The file that the
// configuration names for the VM (stdio_uri) is godwit's.
func (t *Task) logFile(s stdio.URIs) *stdio.LogFile {
	vm := t.vm
	u, err := url.Parse(s.Stdout)
	j := vm.journal.Load()
	if err != nil || u.Scheme != "file" {
		return nil
	}
	woken := vm.origin.restored || j.Restored != nil || j.Move
	own, err := vm.host.Config.TaskOutput(vm.namespace, vm.id)
	if !woken && (err != nil || own.String() != s.Stdout) {
		return nil
	}
	cfg := vm.host.Config.Logs
	return &stdio.LogFile{Path: u.Path, MaxBytes: int64(cfg.MaxBytes), Files: cfg.Files, UID: uidOf(j)}
}

// uidOf is the UID of the VM of a journal.
func uidOf(j *journal.Journal) string {
	if j.Spec == nil {
		return ""
	}
	return j.Spec.UID
}

// configuredOutput removes the output that the configuration names from s, if the task had none before. What
// an order names stays.
func (t *Task) configuredOutput(s stdio.URIs, r journal.Resume) stdio.URIs {
	vm := t.vm
	configured, err := vm.host.Config.TaskOutput(vm.namespace, vm.id)
	if err != nil || !r.NoOutput || s.Stdout != configured.String() {
		return s
	}
	return stdio.URIs{Stdin: s.Stdin, Terminal: s.Terminal}
}

// offerFifos makes fifos by which clients attach to a task whose output goes to a log. An error leaves the
// task without them.
func (s *starting) offerFifos() {
	vm := s.vm
	given := s.task.init.stdio
	u, err := url.Parse(given.Stdout)
	if err != nil || u.Scheme == "" || u.Scheme == "fifo" || !vm.origin.restored || !vm.spec().HasAgent() {
		return
	}
	named, err := s.streams.MakeFifos(filepath.Join(vm.journal.Load().RunDir, "task"))
	if err != nil {
		vm.log.Warn("no client can attach to the task", "error", err)
		return
	}
	if named.Terminal = given.Terminal; named.Terminal {
		named.Stderr = ""
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	s.task.init.shown = named
}

// reopenStreams is openStreams for a VM that runs on under a successor of its shim. The client may have
// gone with that shim, and removed its fifos.
func (t *Task) reopenStreams() *stdio.Streams {
	vm := t.vm
	st, err := stdio.Reopen(vm.namespace, vm.id, t.init.stdio, t.logFile(t.init.stdio))
	if err != nil {
		vm.log.Warn("stdio of the adopted task is gone: what it writes there goes nowhere", "error", err)
	}
	t.releaseLogger(st)
	return st
}
