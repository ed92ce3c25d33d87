package qmptest

import (
	"io"
	"os"
	"slices"
	"strings"
)

// State is what the fake writes as device state, and accepts.
const State = "QEVM fake"

func (s *Server) execute(c call, file *os.File) (any, *refusal) {
	switch c.Execute {
	case "qmp_capabilities", "migrate-set-capabilities", "migrate-set-parameters", "query-qmp-schema", "query-commands":
		return struct{}{}, nil
	case "query-status":
		s.save()
		return map[string]any{"status": s.Status, "running": s.Status == "running"}, nil
	case "stop":
		s.transition("running", "paused", "STOP")
		return struct{}{}, nil
	case "cont":
		if s.saving != nil {
			return nil, refuse("Migration is not finalized yet")
		}
		s.transition("", "running", "RESUME")
		if s.Full > 0 {
			s.Full--
			s.event("BLOCK_IO_ERROR", map[string]any{"node-name": "disk-rw", "operation": "write", "action": "stop",
				"nospace": true})
			s.transition("running", "io-error", "STOP")
		}
		return struct{}{}, nil
	case "getfd":
		return s.getFD(c.Arguments["fdname"].(string), file)
	case "closefd":
		return s.closeFD(c.Arguments["fdname"].(string))
	case "migrate", "migrate-incoming":
		return s.migrate(c.Execute, strings.TrimPrefix(c.Arguments["uri"].(string), "fd:"))
	case "query-migrate":
		s.save()
		return map[string]any{"status": s.migration}, nil
	case "qom-list":
		return s.listDevices(), nil
	case "add-fd", "remove-fd", "query-fdsets", "blockdev-add", "blockdev-del", "query-named-block-nodes":
		return s.disk(c, file)
	case "netdev_add", "netdev_del", "device_add", "device_del":
		if drive, ok := c.Arguments["drive"].(string); ok {
			return s.plugDisk(c.Arguments["id"].(string), drive, c.Arguments["addr"])
		}
		return s.nic(c)
	}
	return nil, &refusal{"CommandNotFound", "no command " + c.Execute}
}

// transition goes from one status to another; empty: from any.
func (s *Server) transition(from, to, event string) {
	if s.Status == to || from != "" && s.Status != from {
		return
	}
	s.Status = to
	s.event(event, nil)
}

func (s *Server) getFD(name string, file *os.File) (any, *refusal) {
	if file == nil {
		return nil, refuse("no file descriptor supplied via SCM_RIGHTS")
	}
	s.closeFD(name)
	s.files[name] = file
	return struct{}{}, nil
}

func (s *Server) closeFD(name string) (any, *refusal) {
	file := s.files[name]
	if file == nil {
		return nil, refuse("file descriptor named '%s' not found", name)
	}
	delete(s.files, name)
	file.Close()
	return struct{}{}, nil
}

func (s *Server) migrate(command, name string) (any, *refusal) {
	file := s.files[name]
	delete(s.files, name)
	if file == nil {
		return nil, refuse("file descriptor named '%s' not found", name)
	}
	if command == "migrate" {
		if s.Status == "postmigrate" {
			file.Close()
			return nil, refuse("Can't migrate the vm that was paused due to previous migration")
		}
		s.saving, s.Status, s.migration = file, "finish-migrate", "active"
		s.save()
		return struct{}{}, nil
	}
	if s.migration != "" {
		file.Close()
		return nil, refuse("The incoming migration has already been started")
	}
	s.migration = "active"
	go s.load(file)
	return struct{}{}, nil
}

// load reads what comes, whenever that is.
func (s *Server) load(file *os.File) {
	defer file.Close()
	data, err := io.ReadAll(file)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || string(data) != State {
		s.Exit() // what 7.2 does
		return
	}
	s.Status = "paused"
	s.migrated()
}

// save goes on with one that is under way.
func (s *Server) save() {
	switch {
	case s.saving == nil:
		return
	case s.Saves && !s.Late():
		s.stuck()
		return
	}
	io.WriteString(s.saving, State)
	s.saving.Close()
	s.saving, s.Status = nil, "postmigrate"
	s.migrated()
}

func (s *Server) migrated() {
	s.migration = "completed"
	if !s.Untold {
		s.event("MIGRATION", map[string]any{"status": "completed"})
	}
}

func (s *Server) listDevices() []map[string]string {
	for id := range s.ejecting {
		if s.Late != nil && s.Late() {
			s.eject(id)
		}
	}
	list := []map[string]string{{"name": "type", "type": "string"}}
	for _, id := range s.NICs {
		list = append(list, map[string]string{"name": id, "type": "child<virtio-net-pci>"})
	}
	return list
}

func (s *Server) nic(c call) (any, *refusal) {
	id := c.Arguments["id"].(string)
	netdev := strings.TrimPrefix(id, "tap-")
	nic := strings.TrimPrefix(id, "nic-")
	switch c.Execute {
	case "netdev_add":
		if s.netdevs[netdev] {
			return nil, refuse("Duplicate ID '%s'", id)
		}
		if _, refused := s.closeFD(c.Arguments["fd"].(string)); refused != nil {
			return nil, refused
		}
		s.netdevs[netdev] = true
	case "netdev_del":
		if !s.netdevs[netdev] {
			return nil, &refusal{"DeviceNotFound", "Device '" + id + "' not found"}
		}
		delete(s.netdevs, netdev)
	case "device_add":
		if !s.netdevs[nic] || slices.Contains(s.NICs, id) {
			return nil, refuse("Duplicate device ID '%s', or no netdev", id)
		}
		if _, ok := c.Arguments["host_mtu"].(float64); !ok {
			return nil, refuse("Parameter 'host_mtu' expects uint64") // since 10.0
		}
		s.NICs = append(s.NICs, id)
	case "device_del":
		return s.eject(id)
	}
	return struct{}{}, nil
}

func (s *Server) eject(id string) (any, *refusal) {
	switch {
	case !slices.Contains(s.NICs, id):
		return nil, &refusal{"DeviceNotFound", "Device '" + id + "' not found"}
	case s.Silent && !s.ejecting[id]:
		s.ejecting[id] = true
		s.stuck()
		return struct{}{}, nil
	}
	var refused *refusal
	if s.ejecting[id] { // the guest has looked at last
		refused = refuse("Device %s is already in the process of unplug", id)
	}
	s.NICs = slices.DeleteFunc(s.NICs, func(have string) bool { return have == id })
	delete(s.ejecting, id)
	s.unplugged(id)
	// The first one is for the backend and names no device.
	s.event("DEVICE_DELETED", map[string]any{"path": "/machine/peripheral/" + id + "/virtio-backend"})
	s.event("DEVICE_DELETED", map[string]any{"device": id, "path": "/machine/peripheral/" + id})
	return struct{}{}, refused
}
