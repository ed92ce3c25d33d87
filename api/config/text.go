package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

var units = []struct {
	suffix string
	shift  uint
}{{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}

// ParseSize reads a number of bytes with an optional unit KiB, MiB, GiB or TiB.
func ParseSize(text string) (Size, error) {
	digits, shift := text, uint(0)
	for _, u := range units {
		if d, ok := strings.CutSuffix(text, u.suffix); ok {
			digits, shift = d, u.shift
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("size %q: write a whole number of bytes, KiB, MiB, GiB or TiB, such as 512MiB: %w", text,
			errdefs.ErrInvalidArgument)
	}
	return Size(n << shift), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(text []byte) error {
	n, err := ParseSize(string(text))
	if err != nil {
		return err
	}
	*s = n
	return nil
}

// MarshalText writes the size in the largest unit that leaves no remainder.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s Size) String() string {
	for i := len(units) - 1; i >= 0; i-- {
		if u := units[i]; s != 0 && s&(1<<u.shift-1) == 0 {
			return strconv.FormatUint(uint64(s>>u.shift), 10) + u.suffix
		}
	}
	return strconv.FormatUint(uint64(s), 10)
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("duration %q: write a number with a unit, such as 30s or 10m: %w", text, errdefs.ErrInvalidArgument)
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes the form that UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Duration) String() string { return time.Duration(d).String() }
