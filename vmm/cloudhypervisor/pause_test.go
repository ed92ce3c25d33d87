package cloudhypervisor

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
)

// frozen asks the fake whether its vCPUs stand still, or are about to.
func frozen(t *testing.T, m *Machine) bool {
	t.Helper()
	conn, err := net.Dial("unix", m.Process().Control)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://vmm/api/v1/vm.info", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		Frozen bool `json:"frozen"`
	}
	dial := func(context.Context, string, string) (net.Conn, error) { return conn, nil }
	answers := http.Client{Transport: &http.Transport{DialContext: dial}}
	answer, err := answers.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, json.Unmarshal(body, &info)); err != nil {
		t.Fatal(err)
	}
	return info.Frozen
}

// A vm.pause that is refused half way leaves vCPUs that stand still in a VM that is said to run. Resume lets them go
// on, at the latest when the VMM can pause again, and under a successor, too. Until then its error says that no vCPU
// was told to run.
func TestPauseRefusedHalfWay(t *testing.T) {
	for name, c := range map[string]struct {
		half          string
		adopted, sure bool
	}{
		"once":                            {half: "1"},
		"and again":                       {half: "2"},
		"adopted":                         {half: "1", adopted: true},
		"adopted, no pause was under way": {half: "0", adopted: true, sure: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := fakeVMM(t, "works", 0, "FAKE_HALF="+c.half)
			started, err := f.Start(t.Context(), testConfig(t))
			if err != nil {
				t.Fatal(err)
			}
			m := started.(*Machine)
			defer func() { _ = m.Kill(t.Context()) }()
			if err := m.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !c.sure {
				if err := m.Pause(t.Context()); !errdefs.IsFailedPrecondition(err) {
					t.Fatalf("pause: got %v, want a refusal", err)
				}
			}
			if c.adopted {
				p := m.Process()
				if err := m.Detach(); err != nil {
					t.Fatal(err)
				}
				p.Halting = true
				adopted, err := f.Adopt(t.Context(), p)
				if err != nil {
					t.Fatal(err)
				}
				m = adopted.(*Machine)
			}
			err = m.Resume(t.Context())
			if c.half == "2" {
				if !errors.Is(err, vmm.ErrNotResumed) {
					t.Fatalf("resume while the VMM cannot pause: %v, want ErrNotResumed", err)
				}
				err = m.Resume(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			if frozen(t, m) {
				t.Error("the VM is said to run, and its vCPUs stand still")
			}
			runs(t, m)
			if err := errors.Join(m.Pause(t.Context()), m.Resume(t.Context())); err != nil {
				t.Errorf("pause and resume afterwards: %v", err)
			}
		})
	}
}
