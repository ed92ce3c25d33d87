package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// counted are sorted keys, read as etcd reads them: it visits each key of a range, whatever the limit.
type counted struct {
	keys              []string
	requests, visited int
}

func (c *counted) read(from, to string, limit int64) (found []*mvccpb.KeyValue, more bool) {
	i, _ := slices.BinarySearch(c.keys, from)
	j, _ := slices.BinarySearch(c.keys, to)
	c.requests++
	c.visited += max(0, j-i)
	for _, k := range c.keys[i:max(i, j)] {
		if int64(len(found)) == limit {
			return found, true
		}
		found = append(found, &mvccpb.KeyValue{Key: []byte(k), Value: make([]byte, 200)})
	}
	return found, false
}

func (c *counted) all(t *testing.T, prefix, after string) (all []string) {
	t.Helper()
	for p, goOn := newPager(prefix, after), true; goOn; {
		to := p.to()
		if to <= p.from || to > p.end {
			t.Fatalf("from %q to %q", p.from, to)
		}
		found, more := c.read(p.from, to, p.limit())
		for _, kv := range found {
			all = append(all, string(kv.Key))
		}
		goOn = p.took(found, to, more)
	}
	return all
}

// A list of all keys reads each of them once, in order, however their names lie. It has etcd
// visit a few times as many as there are: it visits no square of them.
func TestPagesOfManyKeys(t *testing.T) {
	const n = 100_000
	random := rand.New(rand.NewPCG(1, 2))
	hex := func(digits int) string {
		var b strings.Builder
		for range digits {
			fmt.Fprintf(&b, "%x", random.IntN(16))
		}
		return b.String()
	}
	for name, key := range map[string]func(i int) string{
		"numbers":       func(i int) string { return fmt.Sprintf("scale\x00n%05d-%02d", i/10, i%10) },
		"short numbers": func(i int) string { return fmt.Sprintf("default\x00vm%d", i) },
		"hashes":        func(int) string { return "k8s.io\x00" + hex(64) },
		"namespaces":    func(i int) string { return fmt.Sprintf("team-%d\x00%s", i%100, hex(12)) },
		"long":          func(i int) string { return "ns\x00" + strings.Repeat("x", 300) + fmt.Sprint(i) },
	} {
		t.Run(name, func(t *testing.T) {
			c := &counted{}
			for i := range n {
				c.keys = append(c.keys, "/g/records/"+key(i))
			}
			slices.Sort(c.keys)
			want := slices.Clone(c.keys)
			c.keys = append(append([]string{"/g/owed/x"}, c.keys...), "/g/version")
			if got := c.all(t, "/g/records/", ""); !slices.Equal(got, want) {
				t.Fatalf("%d keys of %d", len(got), n)
			}
			t.Logf("%d requests, %d visited", c.requests, c.visited)
			if c.visited > 8*n && name != "long" {
				t.Errorf("%d keys are visited in %d requests for a list of %d", c.visited, c.requests, n)
			}
			middle := strings.TrimPrefix(want[n/2], "/g/records/")
			if got := c.all(t, "/g/records/", middle); !slices.Equal(got, want[n/2+1:]) {
				t.Errorf("after the middle: %d keys", len(got))
			}
		})
	}
}
