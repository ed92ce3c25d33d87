package agentd

import (
	"context"
	"os"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"

	"golang.org/x/sys/unix"
)

// Sync implements agentv1.AgentService.
func (s *Service) Sync(context.Context, *agentv1.SyncRequest) (*agentv1.SyncResponse, error) {
	unix.Sync()
	return &agentv1.SyncResponse{}, nil
}

// answerTime is how long the answer of Shutdown has to leave the guest.
const answerTime = 20 * time.Millisecond

// Shutdown implements agentv1.AgentService. What runs is killed.
func (s *Service) Shutdown(context.Context, *agentv1.ShutdownRequest) (*agentv1.ShutdownResponse, error) {
	if group, err := s.group(""); err == nil {
		_ = group.signalAll(unix.SIGKILL) // the power goes anyway
	}
	unix.Sync()
	time.AfterFunc(answerTime, PowerOff)
	return &agentv1.ShutdownResponse{}, nil
}

// PowerOff leaves file systems as clean as can be and ends the VM.
func PowerOff() {
	unix.Sync()
	// SysRq-u makes every file system read-only, those of other namespaces too.
	_ = os.WriteFile("/proc/sysrq-trigger", []byte("u"), 0)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}
