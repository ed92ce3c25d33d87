package shim

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	api "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	criv1 "godwit.dev/godwit/api/cri/v1"
	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/shim/sandboxapi"
)

// sandboxed is a shim that containerd calls by its sandbox API.
type sandboxed struct {
	*world
	api    *sandboxapi.Service
	bundle string
	left   chan error // what the Wait of a container or of the sandbox answered
}

func newSandboxed(t *testing.T) *sandboxed {
	w := newWorld(t)
	s := &sandboxed{world: w, left: make(chan error, 8),
		api: sandboxapi.New(w.service.life, w.service.log, w.service, w.service)}
	s.bundle = filepath.Join(filepath.Dir(w.cfg.StateDir), "vm")
	w.must("make bundle", os.Mkdir(s.bundle, 0o700))
	return s
}

const podConfig = "runtime.v1.PodSandboxConfig"

func (s *sandboxed) create(config *criv1.PodSandboxConfig) error {
	data, err := proto.Marshal(config)
	s.must("encode configuration", err)
	return s.createFrom(&anypb.Any{TypeUrl: podConfig, Value: data})
}

func (s *sandboxed) createFrom(options *anypb.Any) error {
	_, err := s.api.CreateSandbox(ctxNS(s.t), &api.CreateSandboxRequest{SandboxID: "vm", BundlePath: s.bundle,
		NetnsPath: "/run/netns/pod", Options: options})
	return errgrpc.ToNative(err)
}

func team() *criv1.PodSandboxConfig {
	return &criv1.PodSandboxConfig{Metadata: &criv1.PodSandboxMetadata{Name: "web", Namespace: "team", Uid: "u1"}}
}

func (s *sandboxed) startPod() error {
	_, err := s.api.StartSandbox(ctxNS(s.t), &api.StartSandboxRequest{SandboxID: "vm"})
	return err
}

func (s *sandboxed) status() *api.SandboxStatusResponse {
	s.t.Helper()
	r, err := s.api.SandboxStatus(ctxNS(s.t), &api.SandboxStatusRequest{SandboxID: "vm"})
	s.must("status", err)
	return r
}

func (s *sandboxed) stopPod() error {
	ctx, cancel := context.WithTimeout(ctxNS(s.t), time.Minute)
	defer cancel()
	_, err := s.api.StopSandbox(ctx, &api.StopSandboxRequest{SandboxID: "vm"})
	return errgrpc.ToNative(err)
}

func (s *sandboxed) shutdown() error {
	_, err := s.api.ShutdownSandbox(ctxNS(s.t), &api.ShutdownSandboxRequest{SandboxID: "vm"})
	return errgrpc.ToNative(err)
}

func (s *sandboxed) awaitShimEnd() {
	s.t.Helper()
	select {
	case <-s.service.shutdown.Done():
	case <-time.After(time.Minute):
		s.t.Error("the shim does not end")
	}
}

// play makes one call of the recording; false: it is one that this test makes in another way.
func (s *sandboxed) play(line string) (bool, error) {
	ctx, f := ctxNS(s.t), strings.Fields(line)
	id := map[string]string{"POD": "vm"}[f[1]]
	if id == "" {
		id = f[1]
	}
	var err error
	switch f[0] {
	case "CreateSandbox":
		config, bad := base64.StdEncoding.DecodeString(f[len(f)-1])
		s.must("read recording", bad)
		err = s.createFrom(&anypb.Any{TypeUrl: f[len(f)-2], Value: config})
	case "StartSandbox":
		err = s.startPod()
	case "SandboxStatus":
		_, err = s.api.SandboxStatus(ctx, &api.SandboxStatusRequest{SandboxID: id})
	case "WaitSandbox":
		go func() {
			_, err := s.api.WaitSandbox(ctx, &api.WaitSandboxRequest{SandboxID: id})
			s.left <- err
		}()
	case "Platform":
		_, err = s.api.Platform(ctx, &api.PlatformRequest{SandboxID: id})
	case "StopSandbox":
		err = s.stopPod()
	case "ShutdownSandbox":
		err = s.shutdown()
	case "Create":
		err = s.createMember(id, "alpine")
	case "Start":
		err = s.startTask(id)
	case "Connect":
		_, err = s.service.Connect(ctx, &taskapi.ConnectRequest{ID: id})
	case "State":
		_, err = s.service.State(ctx, &taskapi.StateRequest{ID: id})
	case "Kill":
		if f[3] == "15" {
			s.agent.exit("c1") <- 143
		}
	case "Wait":
		s.waitFor(id)
	case "Delete":
		err = s.deleteTask(id)
	case "Shutdown":
		_, err = s.service.Shutdown(ctx, &taskapi.ShutdownRequest{ID: id})
	default:
		return false, nil
	}
	return true, err
}

// TestSandboxAPIRecording: the calls of the CRI plugin over the life of a pod are all answered, in its order. Nothing
// is left after them.
func TestSandboxAPIRecording(t *testing.T) {
	data, err := os.ReadFile("../integration/cri/testdata/sandbox-api-2.4.2.txt")
	if err != nil {
		t.Fatal(err)
	}
	s := newSandboxed(t)
	s.podNotes = map[string]string{criNote + "sandbox-name": "whole", criNote + "sandbox-namespace": "default",
		criNote + "sandbox-uid": "uid-whole"}
	played, stopped := 0, false
	for line := range strings.Lines(string(data)) {
		call, ok := strings.CutPrefix(line, "    ")
		stopped = stopped || strings.HasPrefix(call, "Kill web signal 15")
		if !ok || strings.Contains(call, " exec") || strings.HasPrefix(call, "Wait web") && !stopped {
			continue // the Wait that is asked for at the start is answered at the end
		}
		did, err := s.play(call)
		if err != nil && !(strings.HasPrefix(call, "SandboxStatus") && errdefs.IsNotFound(errgrpc.ToNative(err))) {
			t.Fatalf("%s: %v", call, err)
		}
		if did {
			played++
		}
	}
	if played < 25 {
		t.Errorf("%d calls were played", played)
	}
	s.must("wait for sandbox", <-s.left)
	s.awaitShimEnd()
	s.nothingLeft()
}

// TestSandboxAPI: the pod's configuration becomes the VM's, and each container gets the files of its pod. A VM that
// ends by itself leaves nothing, although no client asks for a delete.
func TestSandboxAPI(t *testing.T) {
	s := newSandboxed(t)
	config := team()
	config.Hostname, config.DnsConfig = "web-0", &criv1.DNSConfig{Servers: []string{"10.0.0.1"}}
	config.Annotations = map[string]string{"godwit.dev/ready": "/ready", "godwit.dev/memory": "1GiB", "other/key": "x"}
	s.must("create", s.create(config))
	if got := s.status(); got.GetState() != "SANDBOX_NOTREADY" {
		t.Errorf("before its start the sandbox is %v", got)
	}
	if err := s.create(config); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a second sandbox: %v", err)
	}
	s.must("start", s.startPod())
	got := s.status()
	if got.GetState() != "SANDBOX_READY" || got.GetPid() == 0 || got.GetCreatedAt().AsTime().IsZero() {
		t.Errorf("the sandbox is %v", got)
	}
	vm, err := s.service.current()
	s.must("find VM", err)
	if sp := vm.spec(); sp.Memory != 1<<30 || sp.Pod.Name != "web" || sp.Pod.Hostname != "web-0" ||
		sp.Pod.Sysctl["net.ipv4.ip_unprivileged_port_start"] != "0" || vm.journal.Load().NetNS != "/run/netns/pod" {
		t.Errorf("the VM is %+v, %+v", sp, sp.Pod)
	}
	r := s.edit(s.memberRequest("web", "alpine"), func(oci *specs.Spec) {
		oci.Mounts = []specs.Mount{{Destination: "/dev/shm", Type: "tmpfs", Source: "shm"}}
	})
	_, err = s.service.Create(ctxNS(t), r)
	s.must("create container", err)
	files := map[string]string{}
	for _, c := range s.service.tasks["web"].bundle.Copies {
		data, err := c.Read(1 << 20)
		s.must("read copy", err)
		files[c.Destination] = string(data)
	}
	hosts, err := os.ReadFile("/etc/hosts")
	s.must("read hosts", err)
	if files["/etc/hostname"] != "web-0\n" || files["/etc/hosts"] != string(hosts) ||
		files["/etc/resolv.conf"] != "nameserver 10.0.0.1\n" {
		t.Errorf("a container has files %q", files)
	}
	if m := vm.spec().Pod.Member("c1"); m == nil || len(m.OCI.Mounts) != 0 || len(m.Mounts) != 1 ||
		m.Mounts[0].Target != "/dev/shm" || vm.spec().Pod.Volumes[0].Size != 64<<20 {
		t.Errorf("a container has mounts %+v and volumes %+v", m.OCI.Mounts, vm.spec().Pod.Volumes)
	}
	metrics, err := s.api.SandboxMetrics(ctxNS(t), &api.SandboxMetricsRequest{SandboxID: "vm"})
	if err != nil || metrics.GetMetrics().GetID() != "vm" || metrics.GetMetrics().GetData() == nil {
		t.Errorf("metrics are %v, %v", metrics, err)
	}
	s.must("VMM dies", s.machine.Kill(t.Context()))
	end, err := s.api.WaitSandbox(ctxNS(t), &api.WaitSandboxRequest{SandboxID: "vm"})
	if err != nil || end.GetExitStatus() != 137 {
		t.Errorf("the sandbox ended with %v, %v", end, err)
	}
	if got := s.status(); got.GetState() != "SANDBOX_NOTREADY" || got.GetExitedAt() == nil {
		t.Errorf("after its end the sandbox is %v", got)
	}
	s.must("delete container", s.deleteTask("web"))
	if !eventually(func() bool { _, err := s.service.task("vm"); return err != nil }) {
		t.Error("the task of the sandbox is not deleted")
	}
	s.nothingLeft()
	s.must("stop", s.stopPod())
	select {
	case <-s.service.shutdown.Done():
		t.Fatal("the shim ended before it was told to")
	case <-time.After(2 * lastAnswer):
	}
	s.must("shut down", s.shutdown())
	s.awaitShimEnd()
}

// TestSandboxAPIRefuses: a pod that no VM can be is refused by the field, as with a pause container. A sandbox that is
// no pod is refused by its type. The shim ends when it is asked to.
func TestSandboxAPIRefuses(t *testing.T) {
	host := func(o *criv1.NamespaceOption) func(*criv1.PodSandboxConfig) {
		return func(c *criv1.PodSandboxConfig) {
			c.Linux = &criv1.LinuxPodSandboxConfig{SecurityContext: &criv1.LinuxSandboxSecurityContext{NamespaceOptions: o}}
		}
	}
	for want, change := range map[string]func(*criv1.PodSandboxConfig){
		"hostNetwork": host(&criv1.NamespaceOption{Network: criv1.NamespaceMode_NODE}),
		"hostPID":     host(&criv1.NamespaceOption{Pid: criv1.NamespaceMode_NODE}),
		"hostIPC":     host(&criv1.NamespaceOption{Ipc: criv1.NamespaceMode_NODE}),
		"hostUsers":   host(&criv1.NamespaceOption{UsernsOptions: &criv1.UserNamespace{}}),
		"sandbox-name": func(c *criv1.PodSandboxConfig) {
			c.Metadata = nil
		},
		"godwit.dev/memory": func(c *criv1.PodSandboxConfig) {
			c.Annotations = map[string]string{"godwit.dev/memory": "much"}
		},
	} {
		t.Run(want, func(t *testing.T) {
			s, config := newSandboxed(t), team()
			change(config)
			if err := s.create(config); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("create = %v", err)
			}
			s.must("shut down", s.shutdown())
			s.awaitShimEnd()
			s.nothingLeft()
		})
	}
	s := newSandboxed(t)
	for _, options := range []*anypb.Any{nil, {TypeUrl: "other"}, {TypeUrl: podConfig, Value: []byte{0xff}}} {
		if err := s.createFrom(options); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "options") {
			t.Errorf("create with options %v = %v", options, err)
		}
	}
	_, err := s.api.PingSandbox(ctxNS(t), &api.PingRequest{SandboxID: "vm"})
	if !errdefs.IsNotFound(errgrpc.ToNative(err)) {
		t.Errorf("ping of no sandbox = %v", err)
	}
}

// TestSandboxAPIHeld: an operation that holds the VM keeps it. StopSandbox fails, and succeeds once the operation is
// over.
func TestSandboxAPIHeld(t *testing.T) {
	s, config := newSandboxed(t), team()
	config.Annotations = map[string]string{"godwit.dev/vm": "held"}
	s.must("create", s.create(config))
	s.must("start", s.startPod())
	_, err := s.capture()
	s.must("capture", err)
	if err := s.stopPod(); err == nil || !strings.Contains(fmt.Sprint(err), "op1") {
		t.Errorf("stop of a VM that is held = %v", err)
	}
	if vm, err := s.service.current(); err != nil || vm.inState(Stopped) {
		t.Errorf("it has ended: %v", err)
	}
	s.must("abort", s.abort())
	s.must("stop", s.stopPod())
	if _, err := os.Stat(s.cfg.VMDir("ns", "team.held")); !os.IsNotExist(err) {
		t.Errorf("something is left of the VM: %v", err)
	}
}

// TestSandboxAPIOfAVMMThatDoesNotDie: the sandbox ends when its VMM is gone, not when its task has ended. containerd
// stops no sandbox that has ended: it would answer the next StopPodSandbox while the VMM still writes to its volumes.
func TestSandboxAPIOfAVMMThatDoesNotDie(t *testing.T) {
	s := newSandboxed(t)
	wasEnd, ends := endBound, kill
	t.Cleanup(func() { endBound, kill = wasEnd, ends })
	endBound = 50 * time.Millisecond
	var lives atomic.Bool
	kill = func(ctx context.Context, id proc.ID) error {
		if lives.Load() && id.PID == s.machine.Process().PID {
			return errFake
		}
		return ends(ctx, id)
	}
	s.must("create", s.create(team()))
	s.must("start", s.startPod())
	deaf := func(deaf bool) {
		s.machine.mu.Lock()
		defer s.machine.mu.Unlock()
		s.machine.deaf = deaf
		lives.Store(deaf)
	}
	deaf(true)
	ended := make(chan error, 1)
	go func() {
		_, err := s.api.WaitSandbox(ctxNS(t), &api.WaitSandboxRequest{SandboxID: "vm"})
		ended <- err
	}()
	ctx, cancel := context.WithTimeout(ctxNS(t), 10*endBound)
	defer cancel()
	if _, err := s.api.StopSandbox(ctx, &api.StopSandboxRequest{SandboxID: "vm"}); err == nil {
		t.Error("StopSandbox is answered while the VMM lives")
	}
	if vm, err := s.service.current(); err != nil || !eventually(func() bool { return vm.inState(Stopped) }) {
		t.Errorf("the task has not ended: %v", err)
	}
	if got := s.status().GetState(); got != "SANDBOX_READY" {
		t.Errorf("while its VMM lives the sandbox is %s", got)
	}
	select {
	case err := <-ended:
		t.Errorf("WaitSandbox is answered while the VMM lives: %v", err)
		ended <- err
	case <-time.After(endBound):
	}
	deaf(false)
	s.must("stop", s.stopPod())
	s.must("wait for sandbox", <-ended)
	if got := s.status(); got.GetState() != "SANDBOX_NOTREADY" || got.GetExitedAt() == nil {
		t.Errorf("after its end the sandbox is %v", got)
	}
	s.nothingLeft()
}
