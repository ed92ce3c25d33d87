package qmptest

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// set is a set of descriptors, of one.
type set struct {
	opaque string
	file   *os.File
}

func (s *Server) disk(c call, file *os.File) (any, *refusal) {
	text := func(key string) string {
		value, _ := c.Arguments[key].(string)
		return value
	}
	switch c.Execute {
	case "add-fd":
		if file == nil {
			return nil, refuse("No file descriptor supplied via SCM_RIGHTS")
		}
		s.lastSet++
		s.sets[s.lastSet] = set{text("opaque"), file}
		return map[string]any{"fdset-id": s.lastSet, "fd": 20 + s.lastSet}, nil
	case "remove-fd":
		id := int(c.Arguments["fdset-id"].(float64))
		if _, ok := s.sets[id]; !ok {
			return nil, refuse("File descriptor named 'fdset-id:%d' not found", id)
		}
		s.sets[id].file.Close()
		delete(s.sets, id)
	case "query-fdsets":
		list := []any{}
		for id, set := range s.sets {
			list = append(list, map[string]any{"fdset-id": id, "fds": []any{map[string]any{"fd": 20 + id,
				"opaque": set.opaque}}})
		}
		return list, nil
	case "blockdev-add":
		return s.addNode(text("node-name"), text("filename"))
	case "blockdev-del":
		return s.removeNode(text("node-name"))
	case "query-named-block-nodes":
		list := []any{}
		for name := range s.nodes {
			list = append(list, map[string]any{"node-name": name})
		}
		return list, nil
	}
	return struct{}{}, nil
}

func (s *Server) addNode(name, file string) (any, *refusal) {
	if s.nodes[name] != "" {
		return nil, refuse("Duplicate nodes with node-name='%s'", name)
	}
	for id := range s.sets {
		if file == fmt.Sprintf("/dev/fdset/%d", id) {
			s.nodes[name] = "free"
			return struct{}{}, nil
		}
	}
	return nil, refuse("Could not open '%s': No such file or directory", file)
}

// removeNode refuses, as QEMU does, while a device has the node. A device that was just ejected still has it
// once.
func (s *Server) removeNode(name string) (any, *refusal) {
	switch s.nodes[name] {
	case "":
		return nil, refuse("Failed to find node with node-name='%s'", name)
	case "ejected":
		s.nodes[name] = "free"
		return nil, refuse("Node %s is in use", name)
	case "free":
		delete(s.nodes, name)
		return struct{}{}, nil
	}
	return nil, refuse("Node %s is in use", name)
}

// plugDisk is device_add of a disk in a hot slot.
func (s *Server) plugDisk(id, drive string, addr any) (any, *refusal) {
	if slices.Contains(s.NICs, id) || s.nodes[drive] != "free" {
		return nil, refuse("Duplicate device ID '%s', or no node %s", id, drive)
	}
	place, _ := addr.(string)
	if user := s.places[place]; user != "" {
		return nil, refuse("PCI: slot %s function 0 not available for virtio-blk-pci, in use by virtio-blk-pci,id=%s", place,
			user)
	}
	s.places[place] = id
	s.nodes[drive] = "used"
	s.NICs = append(s.NICs, id)
	return struct{}{}, nil
}

// unplugged tells the node of a disk that its device is gone.
func (s *Server) unplugged(device string) {
	if id, ok := strings.CutPrefix(device, "hot-"); ok {
		s.nodes["disk-"+id] = "ejected"
		maps.DeleteFunc(s.places, func(_, user string) bool { return user == device })
	}
}
