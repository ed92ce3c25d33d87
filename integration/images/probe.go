package images

import "time"

// ProbeState is what the probe answers to any HTTP request.
type ProbeState struct {
	Nonce     string    `json:"nonce"` // 64 bytes in hex, made at start, in memory only
	PID       int       `json:"pid"`
	StartTime string    `json:"start_time"` // clock ticks since the guest's boot
	BootID    string    `json:"boot_id"`
	Counter   uint64    `json:"counter"`
	Pages     uint64    `json:"pages"` // of random bytes that it has written
	FileLines int       `json:"file_lines"`
	FileOK    bool      `json:"file_ok"`
	FileError string    `json:"file_error,omitempty"`
	Time      time.Time `json:"time"`
}

// Beacon is a UDP message of the probe. No two VMs may ever send the same nonce and
// counter.
type Beacon struct {
	Nonce   string    `json:"nonce"`
	Counter uint64    `json:"counter"`
	Time    time.Time `json:"time"`
}
