package eviction

import (
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
)

// Who does not know the token of the path gets no answer, and orders no move.
func TestToken(t *testing.T) {
	dir, asked := t.TempDir(), 0
	g := guard{tokenFile(dir), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ })}
	ask := func(path string) int {
		to := httptest.NewRecorder()
		g.ServeHTTP(to, httptest.NewRequest(http.MethodPost, path, nil))
		return to.Code
	}
	put := func(token string) {
		t.Helper()
		if err := os.WriteFile(tokenFile(dir), []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(when string, paths ...string) {
		t.Helper()
		for _, path := range paths {
			if code := ask(path); code != http.StatusForbidden {
				t.Errorf("%s, %s is answered %d", when, path, code)
			}
		}
	}
	refused("without a token", Path, Path+"/", Path+"/x")
	put("")
	refused("with an empty one", Path, Path+"/", Path+"/x")
	put("secret")
	refused("with a token", Path, Path+"/", Path+"/secre", Path+"/secrets", Path+"/secret/", "/secret")
	if asked != 0 {
		t.Errorf("the webhook was asked %d times", asked)
	}
	if code := ask(Path + "/secret"); code != http.StatusOK || asked != 1 {
		t.Errorf("the token is answered %d", code)
	}
	put("other")
	refused("with another one", Path+"/secret")
}
