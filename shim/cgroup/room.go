package cgroup

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Room answers the smallest memory limit that holds for processes in the cgroup, and the directory that has it. The
// limit is math.MaxUint64 where there is none. It is not what is free.
func Room(dirs []string) (limit uint64, of string, err error) {
	limit = math.MaxUint64
	for _, d := range dirs {
		for _, at := range append([]string{d}, ancestors(d)...) {
			own, err := memoryLimit(at)
			if err != nil {
				return 0, "", fmt.Errorf("read memory limit of cgroup %s: %w", at, err)
			}
			if own < limit {
				limit, of = own, at
			}
		}
	}
	return limit, of, nil
}

// memoryLimit is a directory's own. No limit is "max" with version 2, and a number near 2^63 with version 1.
func memoryLimit(dir string) (uint64, error) {
	for _, name := range []string{"memory.max", "memory.limit_in_bytes"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		switch text := strings.TrimSpace(string(data)); {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return 0, err
		case text == "max":
			return math.MaxUint64, nil
		default:
			return strconv.ParseUint(text, 10, 64)
		}
	}
	return math.MaxUint64, nil
}
