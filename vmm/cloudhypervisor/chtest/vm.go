package chtest

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// vm is what the fake remembers.
type vm struct {
	state  string // empty: there is none
	memory uint64
	nets   []string
	asked  []string // whose eject the guest was asked for
	frozen bool     // the vCPUs stand still, or are about to, whatever the state says
}

type netConfig struct {
	ID  string  `json:"id"`
	MAC string  `json:"mac"`
	FDs []int64 `json:"fds"`
}

type vmConfig struct {
	Memory struct {
		Size  uint64 `json:"size"`
		Zones []struct {
			ID     string `json:"id"`
			Size   uint64 `json:"size"`
			File   string `json:"file"`
			Shared bool   `json:"shared"`
		} `json:"zones"`
	} `json:"memory"`
	Net []netConfig `json:"net"`
}

func (s *Server) handle(method, call string, body []byte, in *withFiles) (int, any) {
	switch call {
	case "vmm.ping":
		return 200, map[string]any{"version": s.Version, "build_version": "v" + s.Version, "pid": os.Getpid(),
			"features": []string{"kvm"}}
	case "vm.info":
		if s.vm.state == "" {
			return 404, refusal("VM is not created")
		}
		for _, id := range slices.Clone(s.vm.asked) {
			if s.Late != nil && s.Late() {
				s.eject(id)
			} else {
				s.stuck()
			}
		}
		return 200, map[string]any{"config": map[string]any{}, "state": s.vm.state, "memory_actual_size": s.vm.memory,
			"device_tree": s.tree(), "frozen": s.vm.frozen}
	case "vm.create":
		return s.create(body)
	case "vm.boot":
		if s.vm.state == "" {
			return 404, refusal("VM is not created")
		}
		status, out := s.transition("Created", "Running", "booting", "booted")
		if s.Then != "" {
			_, _ = io.WriteString(s.Events, s.Then)
		}
		return status, out
	case "vm.pause":
		return s.pause()
	case "vm.resume":
		status, out := s.transition("Paused", "Running", "resuming", "resumed")
		s.vm.frozen = s.vm.frozen && status != 204
		return status, out
	case "vm.snapshot":
		return s.snapshot(body)
	case "vm.restore":
		return s.restore(body, in)
	case "vm.add-net":
		return s.addNet(body, in)
	case "vm.add-disk":
		return s.addDisk(body)
	case "vm.power-button":
		return 204, nil
	case "vm.remove-device":
		return s.removeDevice(body)
	}
	return 404, nil
}

func (s *Server) tree() map[string]any {
	tree := map[string]any{}
	if s.vm.state == "Created" {
		return nil
	}
	for _, id := range s.vm.nets {
		tree[id] = map[string]any{"id": id}
		tree["_virtio-pci-"+id] = map[string]any{"id": id}
	}
	return tree
}

func (s *Server) create(body []byte) (int, any) {
	var config vmConfig
	switch {
	case s.vm.state != "":
		return 500, refusal("VM is already created")
	case !decode(body, &config):
		return 400, refusal("invalid JSON")
	case config.Memory.Size != 0 || len(config.Memory.Zones) != 1 || !config.Memory.Zones[0].Shared:
		return 500, refusal("this fake wants one shared zone")
	}
	s.vm.state, s.vm.memory = "Created", config.Memory.Zones[0].Size
	return 204, nil
}

// pause tells the vCPUs first. So often as it is to go wrong, nothing else happens, and nothing is taken back.
func (s *Server) pause() (int, any) {
	if s.vm.state == "Running" {
		s.vm.frozen = true
		if s.Half > 0 {
			s.Half--
			return 500, refusal("The VM could not be paused", "Error signalling vCPUs")
		}
	}
	return s.transition("Running", "Paused", "pausing", "paused")
}

func (s *Server) transition(from, to string, events ...string) (int, any) {
	if s.vm.state != from {
		return 500, refusal("The VM could not change", fmt.Sprintf("InvalidStateTransition(%s, %s)", s.vm.state, to))
	}
	s.vm.state = to
	for _, e := range events {
		s.event("vm", e, nil)
	}
	return 204, nil
}

func (s *Server) snapshot(body []byte) (int, any) {
	var config struct {
		URL string `json:"destination_url"`
	}
	dir, ok := "", decode(body, &config)
	if ok {
		dir, ok = strings.CutPrefix(config.URL, "file://")
	}
	if !ok {
		return 400, refusal("invalid JSON")
	}
	if s.vm.state != "Paused" {
		return 500, refusal("The VM could not be snapshotted", "Invalid VM state")
	}
	s.event("vm", "snapshotting", nil)
	s.event("vm", "snapshotted", nil) // before the files are there
	for name, data := range map[string][]byte{"config.json": []byte("{}"), "state.json": state(s.vm.memory)} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return 500, refusal(err.Error())
		}
		_, _ = f.Write(data)
		f.Close()
	}
	return 204, nil
}

func (s *Server) restore(body []byte, in *withFiles) (int, any) {
	var request struct {
		URL    string `json:"source_url"`
		NetFDs []struct {
			ID  string `json:"id"`
			Num int    `json:"num_fds"`
		} `json:"net_fds"`
	}
	if !decode(body, &request) {
		return 400, refusal("invalid JSON")
	}
	total := 0
	for _, n := range request.NetFDs {
		total += n.Num
	}
	if total != len(in.files) { // seen before anything else
		return 400, refusal(fmt.Sprintf("Number of expected FDs: %d, received: %d", total, len(in.files)))
	}
	if s.vm.state != "" {
		return 500, refusal("VM is already created")
	}
	dir := strings.TrimPrefix(request.URL, "file://")
	var config vmConfig
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil || !decode(data, &config) || len(config.Memory.Zones) != 1 {
		return 500, refusal("The VM could not be restored", "config.json")
	}
	saved, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err != nil || !sameState(saved, config.Memory.Zones[0].Size) {
		return 500, refusal("The VM could not be restored", "state.json")
	}
	if err := s.readRAM(saved, dir, config.Memory.Zones[0].File); err != nil {
		return 500, refusal("The VM could not be restored", err.Error())
	}
	if len(request.NetFDs) != len(config.Net) {
		return 500, refusal(fmt.Sprintf("%d NICs have descriptors, the VM has %d", len(request.NetFDs), len(config.Net)))
	}
	for i, n := range config.Net {
		if len(n.FDs) != 1 || request.NetFDs[i].ID != n.ID {
			return 500, refusal("RestoreMissingRequiredNetId " + n.ID)
		}
		s.vm.nets = append(s.vm.nets, n.ID)
		// Of every device, before the restore is said to be one.
		s.event("virtio-device", "activated", map[string]string{"id": n.ID})
	}
	s.vm.state, s.vm.memory = "Paused", config.Memory.Zones[0].Size
	s.event("vm", "restoring", nil)
	s.event("vm", "restored", nil)
	return 204, nil
}

func (s *Server) addNet(body []byte, in *withFiles) (int, any) {
	var config netConfig
	switch {
	case !decode(body, &config):
		return 400, refusal("invalid JSON")
	case s.vm.state == "":
		return 404, refusal("VM is not created")
	case len(in.files) != 1:
		return 500, refusal("VnetQueueFdMismatch")
	case slices.Contains(s.vm.nets, config.ID):
		return 500, refusal("Invalid identifier as it is not unique: " + config.ID)
	}
	s.vm.nets = append(s.vm.nets, config.ID)
	if s.vm.state == "Created" {
		return 204, nil
	}
	return 200, map[string]string{"id": config.ID, "bdf": "0000:00:04.0"}
}

// addDisk plugs in a disk whose file this VMM can open.
func (s *Server) addDisk(body []byte) (int, any) {
	var config struct {
		ID   string `json:"id"`
		Path string `json:"path"`
	}
	switch {
	case !decode(body, &config):
		return 400, refusal("invalid JSON")
	case s.vm.state == "":
		return 404, refusal("VM is not created")
	case slices.Contains(s.vm.nets, config.ID):
		return 500, refusal("Invalid identifier as it is not unique: " + config.ID)
	}
	file, err := os.Open(config.Path)
	if err != nil {
		return 500, refusal("Error from device manager", "Disk", err.Error())
	}
	file.Close()
	s.vm.nets = append(s.vm.nets, config.ID)
	if s.vm.state == "Created" {
		return 204, nil
	}
	return 200, map[string]string{"id": config.ID, "bdf": "0000:00:08.0"}
}

func (s *Server) removeDevice(body []byte) (int, any) {
	var device struct {
		ID string `json:"id"`
	}
	switch {
	case !decode(body, &device):
		return 400, refusal("invalid JSON")
	case !slices.Contains(s.vm.nets, device.ID):
		return 500, refusal("UnknownDeviceId " + device.ID)
	case slices.Contains(s.vm.asked, device.ID): // it takes the question once
		s.eject(device.ID) // and the guest has looked at last
		return 500, refusal("device is being removed")
	}
	s.vm.asked = append(s.vm.asked, device.ID)
	if !s.Silent {
		s.eject(device.ID)
	}
	return 204, nil
}

func (s *Server) eject(id string) {
	gone := func(have string) bool { return have == id }
	s.vm.nets, s.vm.asked = slices.DeleteFunc(s.vm.nets, gone), slices.DeleteFunc(s.vm.asked, gone)
	s.event("vm", "device-removed", map[string]string{"id": id, "bdf": "0000:00:04.0"})
}
