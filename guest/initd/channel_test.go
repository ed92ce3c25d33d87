package initd

import (
	"errors"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
)

// A guest whose workload has used up descriptors or memory goes on with the next connection;
// only a broken listener ends its process 1.
func TestAcceptHostOutlastsShortages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.EINTR, unix.ECONNABORTED, nil,
			unix.EMFILE, nil, unix.EBADF}
		var served []int
		n := 0
		err := acceptHost(func() (int, error) {
			n++
			return n, answers[n-1]
		}, func(conn int) { served = append(served, conn) })
		if !errors.Is(err, unix.EBADF) || n != len(answers) {
			t.Errorf("it ended with %v after %d of %d answers", err, n, len(answers))
		}
		if len(served) != 2 || served[0] != 7 || served[1] != 9 {
			t.Errorf("served %v", served)
		}
	})
}
