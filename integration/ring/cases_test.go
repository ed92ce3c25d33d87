package ring

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const small = `
# a comment
few   vmm   ^TestA$  smoke part 20s
vmm   vmm   ^TestA$
own   vmm   ^TestB$  cloud-hypervisor
demo  demo  -  smoke
- vmm TestA/slow: takes an hour
- demo/qemu TestX: only there
-ground own TestB/quick: it wants two seconds
`

func TestSelect(t *testing.T) {
	all, err := parse(small)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ names, want string }{
		{"all", "vmm/qemu demo/qemu vmm/cloud-hypervisor own/cloud-hypervisor demo/cloud-hypervisor"},
		{"smoke", "few/qemu demo/qemu few/cloud-hypervisor demo/cloud-hypervisor"},
		{"qemu", "vmm/qemu demo/qemu"},
		{"smoke/qemu own", "few/qemu demo/qemu own/cloud-hypervisor"},
		{"demo vmm/qemu", "vmm/qemu demo/qemu demo/cloud-hypervisor"},
	} {
		got, err := Select(all, strings.Fields(tt.names))
		if d := cmp.Diff(strings.Fields(tt.want), IDs(got)); d != "" || err != nil {
			t.Errorf("%s: %v %s", tt.names, err, d)
		}
	}
	for _, name := range []string{"demos", "own/qemu", "vmm/xen", ""} {
		if _, err := Select(all, []string{name}); err == nil || !strings.Contains(err.Error(), "demo") {
			t.Errorf("%q: %v, want an error that lists the cases", name, err)
		}
	}
}

// The longest cases are divided first, and each lane has the order of the list.
func TestLanes(t *testing.T) {
	all, err := parse("a vmm ^T$ qemu 20s\nb vmm ^T$ qemu 100s\nc vmm ^T$ qemu\nd vmm ^T$ qemu 50s\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		cases []Case
		n     int
		want  string
	}{
		{all, 2, "a/qemu b/qemu,c/qemu d/qemu"},
		{all, 1, "a/qemu b/qemu c/qemu d/qemu"},
		{all, 0, "a/qemu b/qemu c/qemu d/qemu"},
		{all[:1], 2, "a/qemu"},
		{nil, 2, ""},
	} {
		var got []string
		for _, lane := range Lanes(tt.cases, tt.n) {
			got = append(got, strings.Join(IDs(lane), " "))
		}
		if d := cmp.Diff(tt.want, strings.Join(got, ",")); d != "" {
			t.Errorf("%d cases in %d lanes: %s", len(tt.cases), tt.n, d)
		}
	}
}

// What a case wants and this machine has not is told by name.
func TestLacks(t *testing.T) {
	all, err := parse("a vmm ^T$ qemu with=NAME\nb vmm ^T$ qemu host with=NAME\nc vmm ^T$ qemu host\nd vmm ^T$ qemu\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ where, value, want string }{
		{"ground", "", "NAME names no file,NAME names no file,it wants KVM on the host itself,"},
		{"ground", "/x", ",it wants KVM on the host itself,it wants KVM on the host itself,"},
		{"host", "", "NAME names no file,NAME names no file,,"},
		{"host", "/x", ",,,"},
	} {
		var got []string
		for _, c := range all {
			got = append(got, c.Lacks(tt.where, func(string) string { return tt.value }))
		}
		if d := cmp.Diff(tt.want, strings.Join(got, ",")); d != "" {
			t.Errorf("%+v: %s", tt, d)
		}
	}
}

func TestSkipsOfTheList(t *testing.T) {
	all, err := parse(small)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"vmm/qemu": "^TestA$/^slow$", "vmm/cloud-hypervisor": "^TestA$/^slow$",
		"demo/qemu": "^TestX$"}
	for _, where := range []string{"host", "ground"} {
		got := map[string]string{}
		for _, c := range At(all, where) {
			if p := c.skipped(); p != "" {
				got[c.ID()] = p
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", where, d)
		}
		want["own/cloud-hypervisor"] = "^TestB$/^quick$"
	}
}

func TestListThatIsWrong(t *testing.T) {
	for text, word := range map[string]string{
		"vmm vmm":                                    "want name, program and tests",
		"vmm vmm [":                                  "tests of vmm",
		"vmm vmm ^T$ fast":                           `unknown word "fast"`,
		"vmm vmm ^T$ 0s":                             `unknown word "0s"`,
		"vmm vmm ^T$\nvmm demo -":                    "twice",
		"vmm vmm ^T$\n- vmm TestA":                   "reason",
		"vmm vmm ^T$\n-ground vmm: slow":             "-ground CASE TEST",
		"vmm vmm ^T$\n- ctr TestA: slow":             "no such case",
		"vmm vmm ^T$ qemu\n- vmm/xen TestA: no such": "no such case",
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%q: %v, want %q", text, err, word)
		}
	}
}

// The committed list names tests that exist, in packages that exist, and its smoke is a
// part of the whole on both VMMs.
func TestTheList(t *testing.T) {
	all, err := Cases()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"vmm", "demo", "ctr", "shimtest", "hibernate", "nic", "crash", "badinput"} {
		got, err := Select(all, []string{name})
		if err != nil || len(got) != len(VMMs) {
			t.Errorf("%s: %v %v, want one on each VMM", name, IDs(got), err)
		}
	}
	smoke, err := Select(all, []string{"smoke"})
	if err != nil || len(smoke) == 0 || smoke[0].VMM != "qemu" {
		t.Errorf("smoke: %v %v", IDs(smoke), err)
	}
	word := regexp.MustCompile(`Test\w+`)
	for _, c := range all {
		text := source(t, c)
		names := word.FindAllString(c.Tests, -1)
		for _, s := range c.Skips {
			top, _, _ := strings.Cut(s.Test, "/")
			names = append(names, top)
		}
		for _, name := range names {
			if !strings.Contains(text, "func "+name+"(t *testing.T)") {
				t.Errorf("%s: no test %s in %s", c.ID(), name, c.Package())
			}
		}
		if (c.Tests == "-") != (len(names) == 0) {
			t.Errorf("%s: tests %q", c.ID(), c.Tests)
		}
	}
	if slices.ContainsFunc(all, func(c Case) bool { return c.Binary() == "" }) {
		t.Error("a case without a program")
	}
}

// source is the text of the package of a case.
func source(t *testing.T, c Case) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", c.Package(), "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %s has no Go files (%v)", c.ID(), c.Package(), err)
	}
	var b strings.Builder
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(data)
	}
	return b.String()
}
