package cloudhypervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/vmm/cloudhypervisor/api/models"
)

func TestParseReasons(t *testing.T) {
	for name, tt := range map[string]struct {
		body string
		want []string
	}{
		"list":    {`["Error from API","The VM could not be restored"]`, []string{"Error from API", "The VM could not be restored"}},
		"object":  {"{ \"error\": \"Invalid header.\nAll previous unanswered requests will be dropped.\" }", []string{"Invalid header. All previous unanswered requests will be dropped."}},
		"empty":   {"", nil},
		"no JSON": {"<oops>", []string{"<oops>"}},
		"long":    {strings.Repeat("x", 1000), []string{strings.Repeat("x", 200)}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, parseReasons([]byte(tt.body))); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCounters: some counters have the greatest number that there is.
func TestCounters(t *testing.T) {
	var got models.Counters
	if err := consume(strings.NewReader(`{"disk-rw":{"read_latency_min":18446744073709551615}}`), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(models.Counters{"disk-rw": {"read_latency_min": 18446744073709551615}}, got); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
}

// TestGate: what the running version would drop without a word is not sent.
func TestGate(t *testing.T) {
	for name, tt := range map[string]struct {
		major int
		body  any
		field string
	}{
		"new enough": {53, &models.Net{ID: "a", PciDeviceID: 4}, ""},
		"too old":    {51, &models.Net{ID: "a", PciDeviceID: 4}, "pci_device_id"},
		"not used":   {51, &models.Net{ID: "a"}, ""},
		"deep":       {51, &models.VM{Disks: []*models.Disk{{ID: "a"}, {PciDeviceID: 8}}}, "disks.pci_device_id"},
	} {
		t.Run(name, func(t *testing.T) {
			err := (&client{major: tt.major}).fits(tt.body)
			if tt.field == "" && err != nil || tt.field != "" && (!errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), tt.field)) {
				t.Errorf("got %v, want one that names %q", err, tt.field)
			}
		})
	}
}

// TestDerivedConfig (N-40): what is sent is made of Config alone, and holds every field
// that it needs and none that is not set.
func TestDerivedConfig(t *testing.T) {
	cfg := testConfig(t)
	d := fakeVMM(t, "works", 0).Driver
	f, err := openFiles(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := d.plan(cfg, f)
	defer p.close()
	vm, owners, fds := p.restored()
	if len(fds) != 1 {
		t.Errorf("descriptors: %v", fds)
	}
	got, err := encode("/x", vm)
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(got), "\r\n\r\n")
	want := strings.ReplaceAll(strings.Join([]string{
		`{"console":{"mode":"Off"},"cpus":{"boot_vcpus":2,"max_vcpus":2,"nested":false},`,
		`"disks":[{"id":"disk-layer0","image_type":"Raw","path":"/proc/self/fd/6","pci_device_id":8,"readonly":true,"serial":"l0"},`,
		`{"id":"disk-rw","image_type":"Raw","path":"/proc/self/fd/7","pci_device_id":9,"serial":"rw"}],`,
		`"landlock_enable":true,"landlock_rules":[{"access":"rw","path":"DIR"}],`,
		`"memory":{"size":0,"zones":[{"file":"/proc/self/fd/5","id":"ram","shared":true,"size":2097152}]},`,
		`"net":[{"fds":[-1],"id":"nic-net0","mac":"52:54:00:00:00:01","mtu":1400,"num_queues":2,"pci_device_id":4}],`,
		`"payload":{"cmdline":"console=ttyS0 a","initramfs":"DIR/boot.initrd","kernel":"DIR/boot.kernel"},"pvpanic":true,`,
		`"rng":{"id":"rng","pci_device_id":2,"src":"/dev/urandom"},"serial":{"mode":"Tty"},`,
		`"vsock":{"cid":3,"id":"vsock","pci_device_id":1,"socket":"DIR/agent.sock"}}`,
	}, ""), "DIR", cfg.Dir)
	if diff := cmp.Diff(want, body); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]*models.NetFDs{{ID: "nic-net0", NumFds: 1}}, owners); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
}

func TestRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat("a", maxLog) + "the end"
	for text, want := range map[string]string{"short": "", long: long[7:]} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path + ".1"); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := rotate(path); err != nil {
			t.Fatal(err)
		}
		kept, _ := os.ReadFile(path + ".1")
		now, err := os.ReadFile(path)
		if err != nil || string(kept) != want || want == "" && string(now) != text || want != "" && len(now) > 0 {
			t.Errorf("log of %d bytes: %d are kept aside, %d stay (%v)", len(text), len(kept), len(now), err)
		}
	}
}
