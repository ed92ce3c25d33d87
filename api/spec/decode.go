package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
)

// Decode reads a Spec as another build may have written it. A field that this build does not
// know is refused by its name: to leave it out would make another VM.
func Decode(data []byte) (*Spec, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err == nil && head.Version > Version {
		return nil, fmt.Errorf("spec: field version is %d, this build reads up to %d; use a node of the newer build: %w",
			head.Version, Version, errdefs.ErrNotImplemented)
	}
	s := new(Spec)
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(s); err != nil {
		return nil, fmt.Errorf("spec: %w; use a node of the build that wrote it: %w", err, errdefs.ErrInvalidArgument)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("spec: bytes after its end: %w", errdefs.ErrInvalidArgument)
	}
	return s, nil
}
