package cloudhypervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/containerd/errdefs"
)

// maxAnswer is far above what any answer has: vm.info of a full VM takes some 20 KiB.
const maxAnswer = 4 << 20

// consume reads the body of an answer, in the shapes that there are: of an error a list
// of reasons, an object that may not be valid JSON, anything, or nothing.
func consume(r io.Reader, data any) error {
	body, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err != nil {
		return err
	}
	if len(body) > maxAnswer {
		return fmt.Errorf("answer has more than %d bytes: %w", maxAnswer, errdefs.ErrOutOfRange)
	}
	if reasons, ok := data.(*[]string); ok {
		*reasons = parseReasons(body)
		return nil
	}
	return json.Unmarshal(body, data)
}

// parseReasons never fails: what cannot be decoded is the reason as it stands.
func parseReasons(body []byte) []string {
	var list []string
	if json.Unmarshal(body, &list) == nil {
		return list
	}
	var object struct {
		Error string `json:"error"`
	}
	// Its text may hold a raw line break, which JSON has not.
	flat := bytes.ReplaceAll(bytes.TrimSpace(body), []byte("\n"), []byte(" "))
	if json.Unmarshal(flat, &object) == nil && object.Error != "" {
		return []string{object.Error}
	}
	const most = 200
	if len(flat) == 0 {
		return nil
	}
	return []string{string(flat[:min(len(flat), most)])}
}

// refusal is an answer other than success.
type refusal struct {
	call    string
	status  int
	reasons []string
}

func (r *refusal) Error() string {
	if len(r.reasons) == 0 {
		return fmt.Sprintf("%s: Cloud Hypervisor refuses with status %d", r.call, r.status)
	}
	return fmt.Sprintf("%s: Cloud Hypervisor refuses: %s (status %d)", r.call, strings.Join(r.reasons, ": "), r.status)
}

func (r *refusal) Unwrap() error {
	switch r.status {
	case http.StatusBadRequest:
		return errdefs.ErrInvalidArgument
	case http.StatusNotFound:
		return errdefs.ErrNotFound
	case http.StatusConflict:
		return errdefs.ErrAlreadyExists
	}
	return errdefs.ErrFailedPrecondition
}

func isRefusal(err error) bool {
	var r *refusal
	return errors.As(err, &r)
}
