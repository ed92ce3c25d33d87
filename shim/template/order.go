package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Order asks the maker for the template of a shape that a container of this size has. What is
// 0 or empty is as for a container that says nothing.
type Order struct {
	VMM    string `json:"vmm,omitempty"`
	Memory uint64 `json:"memory,omitempty"`
	VCPUs  int    `json:"vcpus,omitempty"`
	NICs   int    `json:"nics,omitempty"`
	Layers int    `json:"layers,omitempty"` // read-only disks
}

// Answer of the maker to an Order.
type Answer struct {
	Key     string     `json:"key,omitempty"`
	Existed bool       `json:"existed,omitempty"` // nothing was made
	Code    codes.Code `json:"code,omitempty"`    // of the error's class
	Error   string     `json:"error,omitempty"`
}

// AnswerOf is what the maker says.
func AnswerOf(key string, existed bool, err error) Answer {
	if err == nil {
		return Answer{Key: key, Existed: existed}
	}
	return Answer{Code: status.Code(errgrpc.ToGRPC(err)), Error: err.Error()}
}

// Err is the error that the maker has said, with its class.
func (a Answer) Err() error {
	if a.Error == "" {
		return nil
	}
	class := errdefs.Resolve(errgrpc.ToNative(status.Error(a.Code, "")))
	return fmt.Errorf("%s: %w", a.Error, class)
}

// Info is a template as it is listed.
type Info struct {
	Key        string
	Shape      Shape
	Kernel     string // release of the guest's
	Made, Used time.Time
	Bytes      uint64 // on the disk
}

// List answers the templates that are whole by their heads, those first that were used last.
func (s Store) List() ([]Info, error) {
	entries, err := s.cache().List()
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	var all []Info
	for _, e := range entries {
		h, err := readHead(s.cache().Path(e.Name))
		if err != nil || h.Shape.Key() != e.Name {
			continue // it goes when it is used, or with the next sweep
		}
		all = append(all, Info{Key: e.Name, Shape: h.Shape, Kernel: h.Kernel, Made: h.Made, Used: e.Used, Bytes: e.Size})
	}
	return all, nil
}

// Remove a template. A VM that starts as a copy of it does not notice.
func (s Store) Remove(key string) error {
	if err := s.cache().Remove(key); err != nil {
		return fmt.Errorf("remove template: %w", err)
	}
	return nil
}

// DecodeAnswer reads what the maker has written.
func DecodeAnswer(data []byte) (a Answer, err error) {
	if err := json.Unmarshal(data, &a); err != nil || a.Key == "" && a.Error == "" {
		return a, errors.Join(fmt.Errorf("the maker of templates has given no answer: %w", errdefs.ErrUnavailable), err)
	}
	return a, nil
}
