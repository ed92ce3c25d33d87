package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// answers is a controller.
type answers struct {
	login *nodev1.LoginResponse
	err   error
	asked []string
	uses  []nodev1.Use
}

func (a *answers) Login(_ context.Context, r *nodev1.LoginRequest) (*nodev1.LoginResponse, error) {
	a.asked, a.uses = append(a.asked, r.GetRepository()), append(a.uses, r.GetUse())
	return a.login, a.err
}

// The login of a controller counts for the next push, in place of what the node has, and a changed one for the next.
// An error of the controller is none of "no login".
func TestWithLogin(t *testing.T) {
	r := storetest.Start(t, &storetest.Registry{Token: 1000})
	own := r.Config(t, "p/uid1")
	own.DockerConfig = t.TempDir() // the node has no login
	right := &nodev1.LoginResponse{Username: storetest.User, Password: storetest.Password}
	wrong := &nodev1.LoginResponse{Username: storetest.User, Password: "of before"}
	for name, test := range map[string]struct {
		from answers
		ok   func(error) bool // of asking
		push func(error) bool
	}{
		"the right one":     {answers{login: right}, isNil, isNil},
		"a wrong one":       {answers{login: wrong}, isNil, errdefs.IsUnauthorized},
		"the node's own":    {answers{login: &nodev1.LoginResponse{}}, isNil, errdefs.IsUnauthorized},
		"no Kubernetes":     {answers{err: errdefs.ErrNotImplemented}, isNil, errdefs.IsUnauthorized},
		"it is refused":     {answers{err: errdefs.ErrPermissionDenied}, errdefs.IsPermissionDenied, nil},
		"an unusual answer": {answers{err: errors.New("x")}, isErr, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r.Expire()
			cfg, err := own.WithLogin(t.Context(), &test.from, nodev1.Use_USE_CONTENT)
			if !test.ok(err) || len(test.from.asked) != 1 || test.from.asked[0] != own.Repository {
				t.Fatalf("%v, asked %v", err, test.from.asked)
			}
			if test.push == nil {
				return
			}
			_, a := noise(100)
			if err := openStore(t, cfg).Put(t.Context(), store.Blob(a.Digest), a); !test.push(err) {
				t.Errorf("push: %v", err)
			}
		})
	}
	none := &answers{}
	layout := store.Config{Repository: store.LayoutPrefix + t.TempDir()}
	cfg, err := layout.WithLogin(t.Context(), none, nodev1.Use_USE_CONTENT)
	if err != nil || cfg.Login != nil || len(none.asked) != 0 {
		t.Errorf("of a directory a login was asked: %v, %v", none.asked, err)
	}
}

// The keys of a controller come with or without a login, for what it was asked for. No text has them.
func TestWithKeys(t *testing.T) {
	const word = "the-bytes-of-a-key"
	from := &answers{login: &nodev1.LoginResponse{SealKeys: [][]byte{[]byte(word)}, SignKey: []byte(word),
		SignTrusted: [][]byte{[]byte(word)}}}
	own := store.Config{Repository: "r/u"}
	cfg, err := own.WithLogin(t.Context(), from, nodev1.Use_USE_CONTENT)
	if err != nil || cfg.Login != nil || cfg.Keys == nil || string(cfg.Keys.Seal[0]) != word ||
		string(cfg.Keys.Sign) != word || string(cfg.Keys.Trusted[0]) != word {
		t.Fatalf("%v, %v", cfg, err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "keys", *cfg.Keys)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "keys", *cfg.Keys)
	k := *cfg.Keys
	for _, text := range []string{log.String(), fmt.Sprint(k), fmt.Sprintf("%+v %#v %s %q %x", k, k, k, &k, &k)} {
		if strings.Contains(text, word) || strings.Contains(text, fmt.Sprintf("%d", []byte(word))[1:20]) ||
			strings.Contains(text, fmt.Sprintf("%x", word)) || !strings.Contains(text, "(keys)") {
			t.Errorf("keys as text: %s", text)
		}
	}
	from.login = &nodev1.LoginResponse{Username: "u", Password: "p"}
	cfg, err = own.WithLogin(t.Context(), from, nodev1.Use_USE_STORE)
	if err != nil || cfg.Keys != nil || cfg.Login == nil {
		t.Errorf("%v, %v", cfg, err)
	}
	if want := []nodev1.Use{nodev1.Use_USE_CONTENT, nodev1.Use_USE_STORE}; !slices.Equal(from.uses, want) {
		t.Errorf("asked for %v", from.uses)
	}
}

// later is a controller that has no answer at first.
type later struct {
	answers
	begun time.Time
	after time.Duration
	hangs bool // until the question is given up
}

func (l *later) Login(ctx context.Context, r *nodev1.LoginRequest) (*nodev1.LoginResponse, error) {
	if time.Since(l.begun) >= l.after {
		return l.answers.Login(ctx, r)
	}
	if l.hangs {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("no operator leads: %w", errdefs.ErrUnavailable)
}

// While another operator begins to lead, and while a Secret is mended, the login is asked for again. That has a bound,
// and the time of the caller is one too.
func TestWithLoginAsksAgain(t *testing.T) {
	right := &nodev1.LoginResponse{Username: "u", Password: "p"}
	of := func(least, most time.Duration) [2]time.Duration { return [2]time.Duration{least, most} }
	for name, test := range map[string]struct {
		from  later
		bound time.Duration // of the caller
		ok    func(error) bool
		took  [2]time.Duration // at least, and at most
	}{
		"a lease changes": {later{after: 45 * time.Second}, time.Hour, isNil, of(45*time.Second, time.Minute)},
		"it hangs once": {later{after: 10 * time.Second, hangs: true}, time.Hour, isNil,
			of(15*time.Second, 30*time.Second)},
		"nothing ever leads": {later{after: time.Hour}, time.Hour, errdefs.IsUnavailable, of(time.Minute, time.Minute)},
		"the caller is over": {later{after: time.Hour}, 7 * time.Second, errdefs.IsUnavailable,
			of(7*time.Second, 7*time.Second)},
		"a refusal is an end": {later{answers: answers{err: errdefs.ErrPermissionDenied}}, time.Hour,
			errdefs.IsPermissionDenied, of(0, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), test.bound)
				defer cancel()
				test.from.begun, test.from.login = time.Now(), right
				cfg, err := store.Config{Repository: "r/u"}.WithLogin(ctx, &test.from, nodev1.Use_USE_CONTENT)
				took := time.Since(test.from.begun)
				if !test.ok(err) || took < test.took[0] || took > test.took[1] || (err == nil) != (cfg.Login != nil) {
					t.Errorf("%v after %v", err, took)
				}
			})
		})
	}
}

func isNil(err error) bool { return err == nil }
func isErr(err error) bool { return err != nil }

// A mirror is another program: it is not told the login of the registry.
func TestMirrorGetsNoLogin(t *testing.T) {
	var told []string
	mirror := storetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		told = append(told, q.Header.Get("Authorization"))
		w.Header().Set("WWW-Authenticate", `Basic realm="m"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	r := storetest.Start(t, &storetest.Registry{Token: 1000})
	cfg := r.Config(t, "p/uid1")
	cfg.DockerConfig = t.TempDir()
	cfg.Login = &store.Login{Username: storetest.User, Password: storetest.Password}
	cfg.HostsDir = hosts(t, r.Host(), fmt.Sprintf("server = %q\n[host.%q]\ncapabilities = [\"pull\"]\n", r.URL, mirror))
	st := openStore(t, cfg)
	_, a := noise(100)
	if err := st.Put(t.Context(), store.Blob(a.Digest), a); err != nil {
		t.Fatal(err)
	}
	if _, err := store.ReadBlob(t.Context(), st, a.Digest, a.Size); err != nil {
		t.Fatal(err)
	}
	if len(told) == 0 || strings.Join(told, "") != "" {
		t.Errorf("the mirror was told %q", told)
	}
}

// Where the configuration wants TLS, and hosts.toml has the registry itself without, the password stays here.
func TestLoginIsNotSentInTheClear(t *testing.T) {
	var told []string
	clear := storetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		told = append(told, q.Header.Get("Authorization"))
		w.Header().Set("WWW-Authenticate", `Basic realm="m"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	host := strings.TrimPrefix(clear, "http://")
	cfg := store.Config{Repository: host + "/p/uid1", DockerConfig: t.TempDir(),
		Login: &store.Login{Username: storetest.User, Password: storetest.Password}}
	_, a := noise(100)
	for name, text := range map[string]string{
		"a host":     fmt.Sprintf("server = %q\n[host.%q]\n", "https://"+host, clear),
		"the server": fmt.Sprintf("server = %q\n", clear),
	} {
		cfg.HostsDir = hosts(t, host, text)
		r, err := store.NewRegistry(cfg) // one try
		if err != nil {
			t.Fatal(err)
		}
		told = nil
		if _, err := r.Stat(t.Context(), store.Blob(a.Digest)); err == nil {
			t.Errorf("%s: it takes no login", name)
		}
		if len(told) == 0 || strings.Join(told, "") != "" {
			t.Errorf("%s: was told %q", name, told)
		}
	}
}

// A login is in the job of a worker, and in no text.
func TestLoginIsNoText(t *testing.T) {
	cfg := store.Config{Repository: "r", Login: &store.Login{Username: "u", Password: "hunter2", IdentityToken: "hunter2"}}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "login", cfg.Login, "value", *cfg.Login, "config", cfg)
	for _, text := range []string{fmt.Sprint(cfg, cfg.Login, *cfg.Login), fmt.Sprintf("%v %+v %#v", cfg, *cfg.Login,
		*cfg.Login), fmt.Sprintf("%#v %s %q %x", cfg.Login, cfg.Login, cfg.Login, *cfg.Login), log.String()} {
		if strings.Contains(text, "hunter2") || strings.Contains(text, "68756e74657232") {
			t.Errorf("a text has it: %s", text)
		}
	}
	data, err := json.Marshal(cfg)
	if err != nil || !strings.Contains(string(data), "hunter2") {
		t.Errorf("the job of a worker has no login: %v", err)
	}
}
