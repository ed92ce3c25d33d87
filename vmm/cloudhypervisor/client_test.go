package cloudhypervisor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/cloudhypervisor/api/models"
)

func TestParseReasons(t *testing.T) {
	for name, tt := range map[string]struct {
		body string
		want []string
	}{
		"list": {`["Error from API","The VM could not be restored"]`,
			[]string{"Error from API", "The VM could not be restored"}},
		"object": {"{ \"error\": \"Invalid header.\nAll previous unanswered requests will be dropped.\" }",
			[]string{"Invalid header. All previous unanswered requests will be dropped."}},
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
			if tt.field == "" && err != nil || tt.field != "" && (!errdefs.IsFailedPrecondition(err) ||
				!strings.Contains(err.Error(), tt.field)) {
				t.Errorf("got %v, want one that names %q", err, tt.field)
			}
		})
	}
}

// TestDerivedConfig: what is sent is made of Config alone, and holds every field
// that it needs and none that is not set.
func TestDerivedConfig(t *testing.T) {
	cfg := testConfig(t)
	d := fakeVMM(t, "works", 0).Driver
	f, err := openFiles(cfg, true, true)
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
		`"disks":[{"id":"disk-layer0","image_type":"Raw","path":"/proc/self/fd/6","pci_device_id":8,` +
			`"readonly":true,"serial":"l0"},`,
		`{"id":"disk-rw","image_type":"Raw","path":"/proc/self/fd/7","pci_device_id":9,"serial":"rw"}],`,
		`"landlock_enable":true,"landlock_rules":[{"access":"rw","path":"DIR"}],`,
		`"memory":{"size":0,"zones":[{"file":"/proc/self/fd/5","id":"ram","shared":true,"size":2097152}]},`,
		`"net":[{"fds":[-1],"id":"nic-net0","mac":"52:54:00:00:00:01","num_queues":2,"pci_device_id":4}],`,
		`"payload":{"cmdline":"console=ttyS0 a","initramfs":"DIR/boot.initrd","kernel":"DIR/boot.kernel"},"pvpanic":true,`,
		`"rng":{"id":"rng","pci_device_id":2,"src":"/dev/urandom"},"serial":{"mode":"Tty"},`,
		`"vsock":{"cid":3,"id":"vsock","pci_device_id":1,"socket":"DIR/agent.sock"}}`,
	}, ""), "DIR", f.work)
	if diff := cmp.Diff(want, body); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]*models.NetFDs{{ID: "nic-net0", NumFds: 1}}, owners); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
}

// TestVMDisk: the derived configurations of a VM that boots a system of its own.
func TestVMDisk(t *testing.T) {
	d := fakeVMM(t, "works", 0).Driver
	for name, tt := range map[string]struct {
		change  func(*vmm.Config)
		payload string
		hyperv  bool
	}{
		"kernel": {func(c *vmm.Config) {
			c.Incoming = true
		}, `{"cmdline":"console=ttyS0 a","initramfs":"DIR/boot.initrd","kernel":"DIR/boot.kernel"}`, false},
		"windows": {func(c *vmm.Config) {
			c.Kernel, c.Initrd, c.Firmware, c.HyperV = "", "", c.Disks[0].File, true
		}, `{"firmware":"/proc/self/fd/8"}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			cfg.Console, cfg.Serial, cfg.Reboots = nil, filepath.Join(cfg.Dir, "console.sock"), true
			tt.change(&cfg)
			f, err := openFiles(cfg, true, true)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			p := d.plan(cfg, f)
			defer p.close()
			payload, err := json.Marshal(p.vm.Payload)
			if want := strings.ReplaceAll(tt.payload, "DIR", f.work); err != nil || string(payload) != want {
				t.Errorf("payload %s, %v, want %s", payload, err, want)
			}
			if p.vm.Serial.Mode != "Socket" || p.vm.Serial.Socket != f.work+"/"+serialSocket ||
				p.vm.Cpus.KvmHyperv != tt.hyperv {
				t.Errorf("serial %+v, CPUs %+v", p.vm.Serial, p.vm.Cpus)
			}
			// What it boots from is there for the reset of a woken VM too.
			if _, err := os.Lstat(filepath.Join(workDir(cfg.Dir), kernelLink)); (err == nil) != (cfg.Kernel != "") {
				t.Errorf("link to the kernel: %v", err)
			}
			if err := check(cfg); err != nil {
				t.Error(err)
			}
			cfg.NVRAM = cfg.Firmware
			if cfg.Firmware != nil && check(cfg) == nil {
				t.Error("variables of a firmware are accepted")
			}
		})
	}
}
