package cloudhypervisor

import (
	"strings"
	"testing"
)

// TestExitOfAVCPU: a VMM whose vCPU KVM cannot run ends as after a power-off of the guest, and only its log tells.
func TestExitOfAVCPU(t *testing.T) {
	const said = "cloud-hypervisor: 9.1s: <vcpu0> ERROR:vmm/src/cpu.rs:1460 -- VCPU generated error: VcpuRun("
	for text, room := range map[string]bool{
		said + "VCPU error Os { code: 14, kind: Uncategorized, message: \"Bad address\" })": true,
		said + "Unexpected exit reason on vcpu run: InternalError)":                         false,
	} {
		for _, how := range []ending{poweredOff, unknown} {
			got := exitOf(how, 0, text)
			if got.Clean || got.Status != 1 || !strings.Contains(got.Reason, "VCPU generated error") ||
				strings.Contains(got.Reason, "ram_size") != room {
				t.Errorf("exit after %q: %+v", text, got)
			}
		}
		if got := exitOf(panicked, 0, text); got.Reason != "guest panicked" {
			t.Errorf("exit of a panic: %+v", got)
		}
	}
}
