// Package ring is the KVM ring: the named list of what runs where KVM works, on which
// VMM, and the runner that tells of each case how it ended.
package ring

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var costWord = regexp.MustCompile(`^[1-9][0-9]{0,3}s$`)

// VMMs that the ring runs on, by the names of the configuration.
var VMMs = []string{"qemu", "cloud-hypervisor"}

//go:embed cases.txt
var list string

// Case is one line of the list on one VMM.
type Case struct {
	Name, VMM string
	Program   string
	Tests     string // what "go test -run" takes; "-": the program has no tests
	Skips     []Skip
	smoke     bool
	part      bool
	cost      int    // seconds that it takes on an idle processor, about
	needs     string // variable that names a file
	host      bool   // not in the ground
}

// Skip is a test of a case that does not run, and why.
type Skip struct {
	Test, Why string
	ground    bool // it runs on the host
}

// ID names the case in results.
func (c Case) ID() string { return c.Name + "/" + c.VMM }

// Cases are all of the list, VMM by VMM.
func Cases() ([]Case, error) { return parse(list) }

func parse(text string) ([]Case, error) {
	var lines [][]string
	skips := map[string][]Skip{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if f[0] == "-" || f[0] == "-ground" {
			head, why, ok := strings.Cut(line, ": ")
			f := strings.Fields(head)
			if !ok || len(f) != 3 {
				return nil, fmt.Errorf("list of cases: %q: want \"%s CASE TEST: reason\"", line, f[0])
			}
			skips[f[1]] = append(skips[f[1]], Skip{Test: f[2], Why: why, ground: f[0] == "-ground"})
			continue
		}
		if len(f) < 3 {
			return nil, fmt.Errorf("list of cases: %q: want name, program and tests", line)
		}
		lines = append(lines, f)
	}
	var all []Case
	for _, vmm := range VMMs {
		for _, f := range lines {
			c, here, err := read(f, vmm)
			if err != nil {
				return nil, err
			}
			if !here {
				continue
			}
			c.Skips = slices.Concat(skips[c.Name], skips[c.ID()])
			if slices.ContainsFunc(all, func(o Case) bool { return o.ID() == c.ID() }) {
				return nil, fmt.Errorf("list of cases: %s is there twice", c.Name)
			}
			all = append(all, c)
		}
	}
	for name := range skips {
		if !slices.ContainsFunc(all, func(c Case) bool { return c.Name == name || c.ID() == name }) {
			return nil, fmt.Errorf("list of cases: a test of %s is left out, and there is no such case", name)
		}
	}
	return all, nil
}

// read makes a line's case on a VMM; here is false if it does not run there.
func read(f []string, vmm string) (c Case, here bool, err error) {
	c = Case{Name: f[0], VMM: vmm, Program: f[1], Tests: f[2]}
	if _, err := regexp.Compile(c.Tests); err != nil {
		return c, false, fmt.Errorf("list of cases: tests of %s: %w", c.Name, err)
	}
	here = true
	for _, word := range f[3:] {
		switch {
		case word == "smoke":
			c.smoke = true
		case word == "part":
			c.part = true
		case word == "host":
			c.host = true
		case costWord.MatchString(word):
			if c.cost, err = strconv.Atoi(strings.TrimSuffix(word, "s")); err != nil {
				return c, false, fmt.Errorf("list of cases: %s: %w", c.Name, err)
			}
		case strings.HasPrefix(word, "with="):
			c.needs = strings.TrimPrefix(word, "with=")
		case slices.Contains(VMMs, word):
			here = here && word == vmm
		default:
			return c, false, fmt.Errorf("list of cases: %s: unknown word %q", c.Name, word)
		}
	}
	return c, here, nil
}

// Select answers the cases that the names ask for, in the order of the list. A name is
// all, smoke, or a case, and may end in a VMM: ctr/qemu. A VMM alone is all on it.
func Select(all []Case, names []string) ([]Case, error) {
	wanted := map[string]bool{}
	for _, name := range names {
		found := false
		for _, c := range all {
			if c.named(name) {
				wanted[c.ID()], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("no case is called %q: use all, smoke, %s, or one of %s, which may end in a VMM: ctr/qemu",
				name, strings.Join(VMMs, ", "), strings.Join(namesOf(all), ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(c Case) bool { return !wanted[c.ID()] }), nil
}

// At are the cases as they run there, on the host or in the ground.
func At(cases []Case, where string) []Case {
	here := slices.Clone(cases)
	for i, c := range here {
		here[i].Skips = slices.DeleteFunc(slices.Clone(c.Skips), func(s Skip) bool { return s.ground && where == "host" })
	}
	return here
}

// Lacks says why a case cannot run there, on the host or in the ground; empty: it can.
func (c Case) Lacks(where string, getenv func(string) string) string {
	switch {
	case c.needs != "" && getenv(c.needs) == "":
		return c.needs + " names no file"
	case c.host && where != "host":
		return "it wants KVM on the host itself"
	}
	return ""
}

func (c Case) named(name string) bool {
	if slices.Contains(VMMs, name) {
		name = "all/" + name
	}
	name, vmm, _ := strings.Cut(name, "/")
	if vmm != "" && vmm != c.VMM {
		return false
	}
	return name == c.Name || name == "all" && !c.part || name == "smoke" && c.smoke
}

func namesOf(all []Case) (names []string) {
	for _, c := range all {
		if !slices.Contains(names, c.Name) {
			names = append(names, c.Name)
		}
	}
	return names
}
