//go:build integration

package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/kubernetes/store"
	rootstore "godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// fault is what goes wrong with one request.
type fault int

const (
	none     fault = iota // the request is as it should be
	busy                  // 429, not done
	starting              // 403, not done: the API server has just started
	failed                // 500, not done
	lost                  // done, and no answer
	badGate               // done, and the answer is a 504
	notSent               // no connection
	mostKind              // the number of faults that any request may have
	expired               // 410, of a list
)

// faults stands between a client and a real API server.
type faults struct {
	next http.RoundTripper
	mu   sync.Mutex
	pick func(*http.Request) fault
	seen map[fault]int

	after func(*http.Request) // when a request was made, and before its answer is lost; nil: nothing
}

var errCut = errors.New("connection reset by the test")

func (f *faults) RoundTrip(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	kind := f.pick(req)
	f.seen[kind]++
	f.mu.Unlock()
	switch kind {
	case busy:
		return answer(req, http.StatusTooManyRequests), nil
	case starting:
		return answer(req, http.StatusForbidden), nil
	case failed:
		return answer(req, http.StatusInternalServerError), nil
	case expired:
		return answer(req, http.StatusGone), nil
	case notSent:
		return nil, errCut
	}
	resp, err := f.next.RoundTrip(req)
	if err != nil || kind == none {
		return resp, err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if f.after != nil {
		f.after(req)
	}
	if kind == badGate {
		return answer(req, http.StatusGatewayTimeout), nil
	}
	return nil, errCut
}

func answer(req *http.Request, code int) *http.Response {
	text := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"by the test","code":%d}`, code)
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Request: req, Proto: "HTTP/1.1",
		ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader([]byte(text)))}
}

func (f *faults) wrap(next http.RoundTripper) http.RoundTripper { f.next = next; return f }

// The suite of all stores, while one request for records in eight goes wrong: no caller sees it, and no change is made
// twice.
func TestStoreWithFaults(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	f := &faults{seen: map[fault]int{}, pick: func(req *http.Request) fault {
		odds := 8
		if strings.Contains(req.URL.Path, "/configmaps") { // the suite makes more than a thousand
			odds = 64
		}
		if rnd.IntN(odds) > 0 {
			return none
		}
		return fault(rnd.IntN(int(mostKind)))
	}}
	storetest.Run(t, func(t *testing.T) (rootstore.Store, func() rootstore.Store) {
		st, again := open(t, f.wrap)
		return st, func() rootstore.Store { return again() }
	})
	for kind := range mostKind {
		if f.seen[kind] == 0 {
			t.Errorf("fault %d never came", kind)
		}
	}
}

func vm(id string) *nodev1.VM { return &nodev1.VM{Namespace: "k8s.io", Id: "ns." + id} }

// A write whose answer is lost is looked up: it is made once, and its version is told.
func TestLostAnswer(t *testing.T) {
	for _, kind := range []fault{lost, badGate} {
		writes := 0
		f := &faults{seen: map[fault]int{}}
		f.pick = func(req *http.Request) fault {
			if req.Method == http.MethodPut {
				if writes++; writes == 1 {
					return kind
				}
			}
			return none
		}
		st, _ := open(t, f.wrap)
		rec, err := st.Apply(t.Context(), vm("a"), 0, transition.Change{Record: &nodev1.Record{Vm: vm("a"), Generation: 1}})
		if err != nil || writes != 1 {
			t.Fatalf("fault %d: %v after %d writes", kind, err, writes)
		}
		now, err := st.Load(t.Context(), vm("a"), transition.Asked{})
		if err != nil || now.Record.GetVersion() != rec.GetVersion() || now.Record.GetGeneration() != 1 {
			t.Errorf("fault %d: %v, %v, and was told %v", kind, now.Record, err, rec)
		}
	}
}

// The answer of a write is lost, and another process writes too. A write that came first was made, although the object
// says nothing of it any more. One that came second was refused.
func TestLostAnswerAndAnotherWrite(t *testing.T) {
	for _, first := range []bool{true, false} {
		f := &faults{seen: map[fault]int{}, pick: func(*http.Request) fault { return none }}
		st, again := open(t, f.wrap)
		rec, err := st.Apply(t.Context(), vm("a"), 0, transition.Change{Record: &nodev1.Record{Vm: vm("a")}})
		if err != nil {
			t.Fatal(err)
		}
		other := func(*http.Request) {
			if out, err := server.Kubectl(t.Context(), "", "annotate", "--overwrite", "vmrec", "ns.a",
				"godwit.dev/write=another"); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}
		f.pick = func(req *http.Request) fault {
			if req.Method != http.MethodPut {
				return none
			}
			if !first {
				other(req)
			}
			return lost
		}
		if first {
			f.after = func(req *http.Request) {
				if req.Method == http.MethodPut {
					other(req)
				}
			}
		}
		next, err := st.Apply(t.Context(), vm("a"), rec.GetVersion(),
			transition.Change{Record: &nodev1.Record{Vm: vm("a"), Generation: 8}})
		if first && err != nil || !first && !errdefs.IsConflict(err) {
			t.Errorf("first %v: %v", first, err)
		}
		f.pick, f.after = func(*http.Request) fault { return none }, nil
		now, err := again().Load(t.Context(), vm("a"), transition.Asked{})
		if err != nil || (now.Record.GetGeneration() == 8) != first || first && now.Record.GetVersion() != next.GetVersion() {
			t.Errorf("first %v: %v, %v, and was told %v", first, now.Record, err, next)
		}
	}
}

// The store's own state changes between the last look of a change and its write. The change was decided under the old
// state, and comes after the new one was answered: it is refused, also if it makes the record.
func TestChangeUnderOldState(t *testing.T) {
	f := &faults{seen: map[fault]int{}, pick: func(*http.Request) fault { return none }}
	st, again := open(t, f.wrap)
	rec, err := st.Apply(t.Context(), vm("a"), 0, transition.Change{Record: &nodev1.Record{Vm: vm("a")}})
	if err != nil {
		t.Fatal(err)
	}
	under := uint64(0)
	for _, c := range []struct {
		id      string
		version uint64
		record  *nodev1.Record
	}{
		{"a", rec.GetVersion(), rec}, {"new", 0, &nodev1.Record{Vm: vm("new")}}, {"a", rec.GetVersion(), nil},
	} {
		next := under
		f.pick = func(req *http.Request) fault {
			if req.Method != http.MethodPut || !strings.Contains(req.URL.Path, "/vmrecords/") || next != under {
				return none
			}
			other, err := store.Open(server.REST(), currentNamespace())
			if err != nil {
				t.Error(err)
				return none
			}
			state, err := other.SetState(t.Context(), under, &nodev1.StoreState{Incarnation: 1})
			if err != nil {
				t.Error(err)
			}
			next = state.GetVersion()
			return none
		}
		_, err := st.Apply(t.Context(), vm(c.id), c.version, transition.Change{Record: c.record, Under: under})
		if !errdefs.IsConflict(err) || next == under {
			t.Errorf("VM %s, version %d, under %d of %d: %v", c.id, c.version, under, next, err)
		}
		under = next
	}
	f.pick = func(*http.Request) fault { return none }
	now, err := again().Load(t.Context(), vm("a"), transition.Asked{})
	if err != nil || now.Record.GetVersion() != rec.GetVersion() || now.Store.GetVersion() != under {
		t.Errorf("%v, %v", now, err)
	}
}

// A list that took longer than the API server remembers is not a part of the records: it fails, and may be tried again.
func TestListThatTookTooLong(t *testing.T) {
	f := &faults{seen: map[fault]int{}, pick: func(*http.Request) fault { return expired }}
	st, _ := open(t, f.wrap)
	if all, err := st.List(t.Context(), "", 0); !errdefs.IsUnavailable(err) || errdefs.IsOutOfRange(err) || all != nil {
		t.Errorf("%v, %v", all, err)
	}
}

// An API server that does not know the kind has said nothing on a record: that is an error, and not absence.
func TestUnknownKindIsNoAbsence(t *testing.T) {
	f := &faults{seen: map[fault]int{}, pick: func(req *http.Request) fault {
		req.URL.Path = strings.Replace(req.URL.Path, "/vmrecords", "/vmrecordsofold", 1)
		return none
	}}
	st, _ := open(t, f.wrap)
	now, err := st.Load(t.Context(), vm("a"), transition.Asked{})
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("%v, %v", now, err)
	}
}
