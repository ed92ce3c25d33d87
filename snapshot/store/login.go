package store

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/authn"

	nodev1 "godwit.dev/godwit/api/node/v1"
	backoff "godwit.dev/godwit/internal/retry"
)

// Login is what a registry is told in place of what a docker configuration has. It is in memory alone, and in the pipe
// of a worker's job: no text that is made for people has it.
type Login struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identityToken,omitempty"`
	RegistryToken string `json:"registryToken,omitempty"`
}

const hidden = "(a login)"

// Format implements fmt.Formatter.
func (Login) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// LogValue implements slog.LogValuer.
func (Login) LogValue() slog.Value { return slog.StringValue(hidden) }

// Keys are those that a controller has for what is made and read in a repository, in place of the node's own. Like a
// Login they are in memory alone, and in the pipe of a worker's job.
type Keys struct {
	Seal    [][]byte `json:"seal,omitempty"`    // the first seals, each opens
	Sign    []byte   `json:"sign,omitempty"`    // PKCS #8
	Trusted [][]byte `json:"trusted,omitempty"` // PKIX
}

const hiddenKeys = "(keys)"

// Format implements fmt.Formatter.
func (Keys) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hiddenKeys) }

// LogValue implements slog.LogValuer.
func (Keys) LogValue() slog.Value { return slog.StringValue(hiddenKeys) }

func (l *Login) authenticator() authn.Authenticator {
	return authn.FromConfig(authn.AuthConfig{Username: l.Username, Password: l.Password,
		IdentityToken: l.IdentityToken, RegistryToken: l.RegistryToken})
}

// Logins is a controller that may have logins for repositories. NotImplemented: it has none, as without Kubernetes.
type Logins interface {
	Login(ctx context.Context, req *nodev1.LoginRequest) (*nodev1.LoginResponse, error)
}

// A push or a restore waits for the answer, while the VM runs or before it does.
const (
	// loginBound is longer than it takes until another operator leads, after one was killed.
	loginBound        = time.Minute
	loginTry          = 20 * time.Second // of one question
	loginPause        = 500 * time.Millisecond
	longestLoginPause = 5 * time.Second
)

// WithLogin adds the login that a controller has for the repository; where it has none, the node's own counts. Where
// content is made or read, it adds the controller's keys too. It is asked each time, so a secret that was changed
// counts at once. An error is never "none": what may pass is asked again.
func (c Config) WithLogin(ctx context.Context, from Logins, use nodev1.Use) (Config, error) {
	if strings.HasPrefix(c.Repository, LayoutPrefix) {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(ctx, loginBound)
	defer cancel()
	got, err := askLogin(ctx, from, &nodev1.LoginRequest{Repository: c.Repository, Use: use})
	if errdefs.IsNotImplemented(err) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("ask the controller for the login of %s: %w", c.Repository, err)
	}
	login := Login{Username: got.GetUsername(), Password: got.GetPassword(), IdentityToken: got.GetIdentityToken(),
		RegistryToken: got.GetRegistryToken()}
	if login != (Login{}) {
		c.Login = &login
	}
	keys := Keys{Seal: got.GetSealKeys(), Sign: got.GetSignKey(), Trusted: got.GetSignTrusted()}
	if len(keys.Seal) > 0 || len(keys.Sign) > 0 || len(keys.Trusted) > 0 {
		c.Keys = &keys
	}
	return c, nil
}

// askLogin asks until there is an answer, an error that does not pass, or the end of ctx.
func askLogin(ctx context.Context, from Logins, req *nodev1.LoginRequest) (*nodev1.LoginResponse, error) {
	for pause := (backoff.Backoff{Min: loginPause, Max: longestLoginPause}); ; {
		once, cancel := context.WithTimeout(ctx, loginTry)
		got, err := from.Login(once, req)
		cancel()
		if !errdefs.IsUnavailable(err) && !errdefs.IsDeadlineExceeded(err) {
			return got, err
		}
		if pause.Wait(ctx); ctx.Err() != nil {
			return nil, err
		}
	}
}
