package shim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"godwit.dev/godwit/api/record"
)

type optionsCase struct {
	options proto.Message
	node    string
	intent  record.Intent
	fails   bool
}

// order makes the options as containerd hands them on.
func (c optionsCase) order(t *testing.T, file string) *anypb.Any {
	t.Helper()
	var any *anypb.Any
	var err error
	switch {
	case c.intent.Set():
		any, err = record.Order(file, c.intent)
	case c.options != nil:
		any, err = anypb.New(c.options)
	}
	if err != nil {
		t.Fatal(err)
	}
	return any
}

func TestReadOptions(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "c.toml")
	if err := os.WriteFile(file, []byte("node = \"from-file\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GODWIT_CONFIG", file)
	for name, c := range map[string]optionsCase{
		"none":   {nil, "from-file", record.Intent{}, false},
		"runc's": {&options.Options{SystemdCgroup: true, NoNewKeyring: true}, "from-file", record.Intent{}, false},
		"path":   {&runtimeoptions.Options{ConfigPath: file}, "from-file", record.Intent{}, false},
		"body": {&runtimeoptions.Options{ConfigBody: []byte("node = \"from-body\"\n")}, "from-body",
			record.Intent{}, false},
		"missing path": {&runtimeoptions.Options{ConfigPath: file + "x"}, "", record.Intent{}, true},
		"bad body":     {&runtimeoptions.Options{ConfigBody: []byte("colour = 1\n")}, "", record.Intent{}, true},
		"restore":      {nil, "from-file", record.Intent{Operation: "o", Attempt: 2, Digest: "d"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			any := c.order(t, file)
			cfg, path, intent, err := readOptions(any, dir)
			if (err != nil) != c.fails {
				t.Fatalf("err = %v", err)
			}
			if err != nil {
				return
			}
			if cfg.Node != c.node || intent != c.intent {
				t.Errorf("node %s, intent %+v", cfg.Node, intent)
			}
			// delete reads the same configuration from what Create left.
			err = saveConfigPath(dir, path)
			if kept, unread := ConfigPath(dir); err != nil || unread != nil || kept != path {
				t.Errorf("kept path %q, %v, %v", kept, err, unread)
			}
		})
	}
}

// A Create on a node whose VMMs would be root is refused by the key, with the remedy, unless that
// is permitted.
func TestRootIsNotForVMMs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	for text, ok := range map[string]bool{
		"[vmm]\nfirst_user = 0\n": false, "[vmm]\nfirst_user = 0\nallow_root = true\n": true,
		"[vmm]\nfirst_user = 1000\n": true,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		order := optionsCase{options: &runtimeoptions.Options{ConfigPath: file}}.order(t, file)
		_, _, _, err := readOptions(order, t.TempDir())
		if (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
		if err != nil && (!errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "vmm.allow_root")) {
			t.Errorf("%q: %v names no remedy", text, err)
		}
	}
}

// Each option of runc is honoured or refused by its name, and options of an unknown kind by theirs.
func TestForeignOptionsAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GODWIT_CONFIG", file)
	honoured := map[string]bool{"SystemdCgroup": true, "NoNewKeyring": true}
	seen := 0
	fields := new(options.Options).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		o := new(options.Options).ProtoReflect()
		f := fields.Get(i)
		switch f.Kind() {
		case protoreflect.BoolKind:
			o.Set(f, protoreflect.ValueOfBool(true))
		case protoreflect.Uint32Kind:
			o.Set(f, protoreflect.ValueOfUint32(7))
		default:
			o.Set(f, protoreflect.ValueOfString("x"))
		}
		name := ""
		for _, word := range strings.Split(string(f.Name()), "_") {
			name += strings.ToUpper(word[:1]) + word[1:]
		}
		order := optionsCase{options: o.Interface()}.order(t, file)
		_, _, _, err := readOptions(order, t.TempDir())
		if honoured[name] {
			seen++
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		name = strings.ReplaceAll(name, "TaskApiVersion", "TaskApiAddress") // one goes with the other
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if seen != len(honoured) {
		t.Errorf("%d of %d options are honoured", seen, len(honoured))
	}
	order := &anypb.Any{TypeUrl: "example.org/Options", Value: []byte("x")}
	if _, _, _, err := readOptions(order, t.TempDir()); !errdefs.IsInvalidArgument(err) ||
		!strings.Contains(err.Error(), order.TypeUrl) {
		t.Errorf("an unknown kind: %v", err)
	}
}
