//go:build integration

package cri

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

var update = flag.Bool("update", false, "write the recordings to testdata")

const config = `[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '` + images.Busybox + `'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.recorder]
  runtime_type = 'io.containerd.recorder.v1'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.path]
  runtime_type = 'io.containerd.path.v1'
  runtime_path = '%s'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.sandbox]
  runtime_type = 'io.containerd.recorder.v1'
  sandboxer = 'shim'
`

// site is a node whose CRI plugin runs the recorder.
type site struct {
	*harness.Node
	t     *testing.T
	calls string // file
	names map[string]string
	shim  string // CRI's name of the runtime
	text  strings.Builder
}

func newSite(t *testing.T, release harness.Release) *site {
	dir := t.TempDir()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	shim := filepath.Join(dir, "containerd-shim-recorder-v1") // in containerd's PATH
	build := exec.Command("go", "build", "-trimpath", "-o", shim, "./integration/cmd/recorder")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build recorder: %v\n%s", err, out)
	}
	s := &site{t: t, calls: filepath.Join(dir, "calls"), shim: "recorder"}
	t.Setenv("GODWIT_RECORDER", s.calls)
	h := harness.New(t, harness.Options{CRI: true, Release: release, Programs: dir, Containerd: fmt.Sprintf(config, shim)})
	s.Node = h.Node(0)
	all, err := images.Standard("/bin/busybox") // its first one is all that is used
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(h.Dir, "busybox.tar")
	if err := images.Write(file, all[0]); err != nil {
		t.Fatal(err)
	}
	s.Ctr(t, "--namespace", "k8s.io", "images", "import", "--local", file)
	return s
}

func (s *site) say(format string, args ...any) { fmt.Fprintf(&s.text, format+"\n", args...) }

// unnamed is the sandbox of a RunPodSandbox that has not answered.
var unnamed = regexp.MustCompile(`(?m)^(binary \w+|[A-Z]\w+) [0-9a-f]{64}`)

// lines answers the calls so far, with names for ids.
func (s *site) lines() (all []string) {
	data, err := os.ReadFile(s.calls)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	text := string(data)
	for id, name := range s.names {
		text = strings.ReplaceAll(text, id, name)
	}
	text = unnamed.ReplaceAllString(text, "${1} POD")
	for line := range strings.Lines(text) {
		line, id, ok := strings.Cut(strings.TrimSpace(line), " exec ")
		if ok {
			_, rest, _ := strings.Cut(id, " ")
			line = strings.TrimSpace(line + " exec " + rest)
		}
		all = append(all, line)
	}
	return all
}

// settle waits until no call has come for a moment, and says those since the first so many.
func (s *site) settle(from int) {
	last, since := -1, time.Now()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		n := len(s.lines())
		if n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) > 400*time.Millisecond {
			break
		}
	}
	for _, l := range s.lines()[from:] {
		s.say("    %s", l)
	}
}

// call asks the CRI plugin once.
func (s *site) call(method string, request Message) (out []byte, err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), harness.Slow(time.Minute))
	defer cancel()
	err = s.Enter(func() error {
		client, err := Dial(s.Socket)
		if err != nil {
			return err
		}
		defer client.Close()
		out, err = client.Call(ctx, method, request)
		return err
	})
	return out, err
}

// step is one call of the life of a pod.
type step struct {
	name string
	do   func() error
}

// life is that of a pod with these containers, from its start to its removal.
func (s *site) life(name string, members ...string) (steps []step) {
	s.names = map[string]string{}
	pod, ids := "", map[string]string{}
	named := func(id, name string) {
		if id != "" {
			s.names[id] = name
		}
	}
	add := func(name string, do func() error) { steps = append(steps, step{name, do}) }
	only := func(method string, request func() Message) {
		add(method, func() error { _, err := s.call(method, request()); return err })
	}
	add("RunPodSandbox", func() error {
		out, err := s.call("RunPodSandbox", Message{}.Text(1, string(Pod(name))).Text(2, s.shim))
		pod = First(out, 1)
		named(pod, "POD")
		return err
	})
	for _, m := range members {
		add("CreateContainer "+m, func() error {
			out, err := s.call("CreateContainer", Message{}.Text(1, pod).Text(2, string(Container(m, images.Busybox))).Text(3,
				string(Pod(name))))
			ids[m] = First(out, 1)
			named(ids[m], m)
			return err
		})
		only("StartContainer", func() Message { return Message{}.Text(1, ids[m]) })
	}
	for _, m := range members[:1] {
		only("ExecSync", func() Message { return Message{}.Text(1, ids[m]).Text(2, "true").Number(3, 10) })
		only("StopContainer", func() Message { return Message{}.Text(1, ids[m]).Number(2, 5) })
		only("RemoveContainer", func() Message { return Message{}.Text(1, ids[m]) })
	}
	only("StopPodSandbox", func() Message { return Message{}.Text(1, pod) })
	only("RemovePodSandbox", func() Message { return Message{}.Text(1, pod) })
	return steps
}

// forget begins a new recording, in a node without pods.
func (s *site) forget() {
	if err := os.WriteFile(s.calls, nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// view says what the CRI plugin knows.
func (s *site) view() (pods []string) {
	list, err := s.call("ListPodSandbox", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range Fields(list, 1) {
		pods = append(pods, First(p, 1))
		s.names[First(p, 1)] = "POD"
		s.say("  CRI: sandbox POD is %s", []string{"READY", "NOTREADY"}[Number(p, 3)])
	}
	if len(pods) == 0 {
		s.say("  CRI: no sandbox")
	}
	list, err = s.call("ListContainers", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range Fields(list, 1) {
		s.say("  CRI: container %s is %s", First([]byte(First(c, 3)), 1), []string{"CREATED", "RUNNING", "EXITED",
			"UNKNOWN"}[Number(c, 6)])
	}
	return pods
}

// restart starts containerd anew and says what it calls by itself.
func (s *site) restart() {
	from := len(s.lines())
	if err := s.StartContainerd(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	s.say("  containerd starts")
	s.settle(from)
}

// end removes what is left, as a kubelet does, and says what containerd still has then.
func (s *site) end() {
	for _, pod := range s.view() {
		for _, method := range []string{"StopPodSandbox", "RemovePodSandbox"} {
			from := len(s.lines())
			_, err := s.call(method, Message{}.Text(1, pod))
			s.say("  %s: %s", method, said(err))
			s.settle(from)
		}
	}
	for _, what := range []string{"tasks", "containers"} {
		if left := strings.Fields(s.Ctr(s.t, "--namespace", "k8s.io", what, "ls", "-q")); len(left) > 0 {
			s.say("  left in containerd: %d %s", len(left), what)
		}
	}
	if s.killShims() > 0 {
		s.say("  left: a shim")
	}
}

// killShims answers how many there were.
func (s *site) killShims() (n int) {
	all, err := s.PIDs()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, pid := range all {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if p, err := os.FindProcess(pid); err == nil && strings.Contains(string(line), "containerd-shim-recorder") {
			n++
			_ = p.Kill()
		}
	}
	return n
}

func said(err error) string {
	if err == nil {
		return "ok"
	}
	text, _, _ := strings.Cut(err.Error(), "\n")
	if len(text) > 200 {
		text = text[:200] + " .."
	}
	return text
}

// run takes steps until one fails.
func (s *site) run(steps []step, each func(name string, from int, err error)) (failed *step) {
	for _, one := range steps {
		from := len(s.lines())
		err := one.do()
		each(one.name, from, err)
		if err != nil {
			return &one
		}
	}
	return nil
}

// killed has containerd die while the shim holds its call number k, and start again. It reports
// whether there was such a call.
func (s *site) killed(k int) bool {
	s.forget()
	hold := s.calls + ".hold"
	if err := os.WriteFile(hold, []byte(fmt.Sprint(k)), 0o600); err != nil {
		s.t.Fatal(err)
	}
	failed := make(chan *step, 1)
	steps := s.life(fmt.Sprintf("killed-%d", k), "web")
	go func() { failed <- s.run(steps, func(string, int, error) {}) }()
	var interrupted *step
	for over := false; !over && len(s.lines()) < k; time.Sleep(5 * time.Millisecond) {
		select {
		case <-failed:
			over = true
		default:
		}
		if over && len(s.lines()) < k {
			return false
		}
	}
	if err := s.Containerd.Kill(); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Remove(hold); err != nil {
		s.t.Fatal(err)
	}
	select {
	case interrupted = <-failed:
	case <-time.After(2 * time.Minute):
		s.t.Fatal("the call does not end")
	}
	at := s.lines()
	call := at[k-1]
	name := "nothing"
	if interrupted != nil {
		name = interrupted.name
	}
	s.say("\n## containerd is killed in call %d, %s; CRI was in %s", k, call, name)
	for _, l := range at[k:] {
		s.say("    %s", l)
	}
	s.restart()
	s.end()
	return true
}

// What containerd's CRI plugin asks of a shim, in its order: over the life of a pod, and where
// containerd is killed in each of its calls.
func TestCalls(t *testing.T) {
	for _, release := range harness.Releases {
		t.Run(string(release), func(t *testing.T) {
			s := newSite(t, release)
			s.say("# Calls of the CRI plugin of containerd %s", release)
			s.whole()
			s.resting("")
			s.resting("paused")
			s.resting("no pids")
			s.shim = "path" // of which runtime_path says where it is
			s.resting("")
			s.shim = "recorder"
			for k := 1; s.killed(k); k++ {
			}
			s.dead() // CRI cannot remove what it leaves
			checkClaims(t, s.text.String())
			file := filepath.Join("testdata", "calls-"+string(release)+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(s.text.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// whole is the life of a pod of two containers, one of which is there until the end.
func (s *site) whole() {
	s.forget()
	s.say("\n## the life of a pod")
	s.run(s.life("whole", "web", "log"), func(name string, from int, err error) {
		s.say("  %s: %s", name, said(err))
		s.settle(from)
	})
	s.end()
}

// resting has containerd killed while it does nothing, and the shim lie afterwards.
func (s *site) resting(lie string) {
	s.forget()
	s.say("\n## containerd is killed while a pod of runtime %s runs; the shim then lies: %q", s.shim, lie)
	steps := s.life("resting-"+s.shim+strings.ReplaceAll(lie, " ", "-"), "web")
	if failed := s.run(steps[:4], func(string, int, error) {}); failed != nil {
		s.t.Fatalf("%s failed", failed.name)
	}
	if err := errors.Join(s.Containerd.Kill(), os.WriteFile(s.calls+".lie", []byte(lie), 0o600)); err != nil {
		s.t.Fatal(err)
	}
	defer os.Remove(s.calls + ".lie")
	s.restart()
	s.end()
}

// dead has the shim of a pod die.
func (s *site) dead() {
	s.forget()
	s.say("\n## the shim of a pod is killed")
	steps := s.life("dead", "web", "log")
	if failed := s.run(steps[:5], func(string, int, error) {}); failed != nil {
		s.t.Fatalf("%s failed", failed.name)
	}
	from := len(s.lines())
	if n := s.killShims(); n != 1 {
		s.t.Fatalf("%d shims, want one of the pod", n)
	}
	s.settle(from)
	s.end()
}
