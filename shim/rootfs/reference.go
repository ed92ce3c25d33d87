package rootfs

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// How a mount names others of its list: core/mount/manager of containerd.
var (
	mountReference = regexp.MustCompile(`^\{\{\s*mount\s+(\d+)\s*\}\}`)
	rangeReference = regexp.MustCompile(`^\{\{\s*overlay\s+(\d+)\s+(\d+)\s*\}\}$`)
)

const mark = "\x00"

// lowerNames splits lowerdir; a mount of the list is given as a mark and its number.
func lowerNames(value string, count int) ([]string, error) {
	var names []string
	for _, part := range strings.Split(value, ":") {
		if !strings.Contains(part, "{{") {
			names = append(names, part)
			continue
		}
		from, to, err := references(part, count)
		if err != nil {
			return nil, err
		}
		step := 1
		if from > to {
			step = -1
		}
		for i := from; i != to+step; i += step {
			names = append(names, mark+strconv.Itoa(i))
		}
	}
	return names, nil
}

func references(part string, count int) (from, to int, err error) {
	if m := rangeReference.FindStringSubmatch(part); m != nil {
		from, _ = strconv.Atoi(m[1])
		to, _ = strconv.Atoi(m[2])
	} else if m := mountReference.FindStringSubmatch(part); m != nil && m[0] == part {
		from, _ = strconv.Atoi(m[1])
		to = from
	} else {
		return 0, 0, fmt.Errorf("overlay lowerdir %q: only {{ mount N }} and {{ overlay N M }} are known: %w", part,
			errdefs.ErrNotImplemented)
	}
	if from >= count || to >= count {
		return 0, 0, invalid("overlay lowerdir %q names a mount that is not among the %d before it", part, count)
	}
	return from, to, nil
}

func reference(name string) (int, bool) {
	number, ok := strings.CutPrefix(name, mark)
	if !ok {
		return 0, false
	}
	i, err := strconv.Atoi(number)
	return i, err == nil
}
