package initd

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// The kernel gets the modules of a name or an alias, each after what it needs, and nothing for other names.
func TestModulesOnDemand(t *testing.T) {
	dir := t.TempDir()
	put := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("needs", "bridge llc stp\nxt_REDIRECT x_tables nf_nat\nnft_chain_nat nf_tables\nbroken\n")
	put("aliases", "rtnl-link-bridge bridge\nipt_REDIRECT xt_REDIRECT\nnft-chain-*-nat nft_chain_nat\n")
	for _, name := range []string{"bridge", "llc", "stp", "x_tables", "nf_nat", "xt_REDIRECT", "nf_tables",
		"nft_chain_nat"} {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		if _, err := w.Write([]byte(name)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		put(name+".ko.gz", packed.String())
	}
	put("broken.ko.gz", "no gzip")
	refused := errors.New("no memory")
	for name, tt := range map[string]struct {
		err  error
		want []string
	}{
		"bridge":           {nil, []string{"llc", "stp", "bridge"}},
		"rtnl-link-bridge": {nil, []string{"llc", "stp", "bridge"}},
		"xt-REDIRECT":      {nil, []string{"x_tables", "nf_nat", "xt_REDIRECT"}},
		"ipt_REDIRECT":     {nil, []string{"x_tables", "nf_nat", "xt_REDIRECT"}},
		"nft-chain-10-nat": {nil, []string{"nf_tables", "nft_chain_nat"}},
		"net-pf-31":        {os.ErrNotExist, nil},
		"../bridge":        {os.ErrNotExist, nil},
		"broken":           {gzip.ErrHeader, nil},
	} {
		var loaded []string
		err := offered{dir, func(image []byte) error {
			loaded = append(loaded, string(image))
			return unix.EEXIST // as of one that is there already
		}}.load(name)
		if !errors.Is(err, tt.err) && !(tt.err == gzip.ErrHeader && err != nil) {
			t.Errorf("%s: %v, want %v", name, err, tt.err)
		}
		if diff := cmp.Diff(tt.want, loaded); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if err := (offered{dir, func([]byte) error { return refused }}).load("bridge"); !errors.Is(err, refused) {
		t.Errorf("a module that the kernel refuses: %v", err)
	}
}
