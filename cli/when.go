package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// when reads a time as docker does: of RFC 3339, a date or time without a zone, seconds since 1970, or how long ago.
// An empty text is the zero time.
func when(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, ok := unixSeconds(text); ok {
		return at, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04", "2006-01-02",
		"2006-01-02Z07:00"} {
		if at, err := time.ParseInLocation(layout, text, now.Location()); err == nil && at.Year() >= 1970 &&
			at.Year() < 2262 { // what nanoseconds can say
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("--%s %q is no time. Write how long ago, such as 10m, or a time, such as %s: %w", flag,
		text, now.UTC().Format(time.RFC3339), errdefs.ErrInvalidArgument)
}

// maxSeconds since 1970 are what nanoseconds can say.
const maxSeconds = uint64(math.MaxInt64 / int64(time.Second))

// unixSeconds reads SECONDS or SECONDS.FRACTION since 1970.
func unixSeconds(text string) (time.Time, bool) {
	whole, part, found := strings.Cut(text, ".")
	seconds, err := strconv.ParseUint(whole, 10, 63)
	if err != nil || seconds >= maxSeconds || found && (part == "" || len(part) > 9) {
		return time.Time{}, false
	}
	nano := uint64(0)
	if found {
		if nano, err = strconv.ParseUint((part + "000000000")[:9], 10, 63); err != nil {
			return time.Time{}, false
		}
	}
	return time.Unix(int64(seconds), int64(nano)), true
}
