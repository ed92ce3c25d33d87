package bundle

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/guest/stage"
)

// directVolumes is where a CSI driver that knows kata says which device it has not mounted on the node: one directory
// for each volume, named by its path. A variable for the tests.
var directVolumes = "/run/kata-containers/shared/direct-volumes"

// directVolume is the file of such a directory.
type directVolume struct {
	VolumeType string            `json:"volume-type"`
	Device     string            `json:"device"`
	FSType     string            `json:"fstype"`
	Metadata   map[string]string `json:"metadata"`
	Options    []string          `json:"options"`
}

// readDirect answers the volume that one of these paths names, if its driver has left it to the VM; nil: it has not.
func readDirect(paths ...string) (*found, error) {
	for _, path := range paths {
		file := filepath.Join(directVolumes, base64.URLEncoding.EncodeToString([]byte(path)), "mountInfo.json")
		data, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read what the CSI driver says of the volume: %w", err)
		}
		return parseDirect(file, path, data)
	}
	return nil, nil
}

func parseDirect(file, dir string, data []byte) (*found, error) {
	var d directVolume
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", file, err, errdefs.ErrInvalidArgument)
	}
	v, err := d.volume(dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return v, nil
}

func (d *directVolume) volume(dir string) (*found, error) {
	if d.VolumeType != "block" && d.VolumeType != "directvol" {
		return nil, refused("volume-type", fmt.Sprintf("%q is not a block device: use volume-type block", d.VolumeType))
	}
	if d.FSType != "ext4" {
		return nil, refused("fstype", fmt.Sprintf("%q is not mounted in the guest, whose kernel has ext4: use a "+
			"StorageClass with ext4", d.FSType))
	}
	if len(d.Metadata) > 0 {
		keys := slices.Sorted(maps.Keys(d.Metadata))
		return nil, refused("metadata", fmt.Sprintf("%s: the guest mounts the file system as it is: leave it out, such as "+
			"fsGroup of the pod", strings.Join(keys, ", ")))
	}
	readOnly, err := stage.CheckFilesystem(d.FSType, d.Options)
	if err != nil {
		return nil, err
	}
	device, err := deviceAt(d.Device)
	if err != nil {
		return nil, fmt.Errorf("device: %w", err)
	}
	device.ReadOnly = readOnly
	return &found{Volume: Volume{Source: dir, Device: &device, Filesystem: d.FSType, Volume: spec.Volume{
		Kind: spec.VolumeMounted, Disk: device.ID, Options: d.Options, Mode: 0o755,
	}}}, nil
}
