package snapshot

import (
	"fmt"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/spec"
)

// Announced is the config of a VM that its source will stream, from what the source says of
// it: read and checked as strictly as that of a snapshot.
func Announced(ref Ref, specJSON, factsJSON []byte) (*Config, error) {
	c := &Config{Version: ConfigVersion, Ref: ref, Spec: new(spec.Spec)}
	if err := decodeStrict(specJSON, "spec", c.Spec); err != nil {
		return nil, err
	}
	if err := checkSpecVersion(c.Spec.Version); err != nil {
		return nil, err
	}
	if err := decodeStrict(factsJSON, "facts", &c.Facts); err != nil {
		return nil, err
	}
	c.Spaces = append(c.Spaces, SpaceInfo{Name: "ram0", Size: int64(c.Spec.Memory)})
	for _, d := range c.Spec.Disks {
		if d.ReadOnly {
			c.Disks = append(c.Disks, DiskInfo{ID: d.ID, Digest: digest.Digest(d.Digest), Size: d.Size})
			continue
		}
		c.Spaces = append(c.Spaces, SpaceInfo{Name: fmt.Sprintf("disk%d", len(c.Spaces)-1), Disk: d.ID, Size: d.Size})
	}
	return c, c.validate()
}
