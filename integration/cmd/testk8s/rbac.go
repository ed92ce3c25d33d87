package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// accounts are those of godwit's programs, by their service accounts.
var accounts = []string{"godwit-operator", "godwit-node"}

const accountPrefix = "system:serviceaccount:godwit-system:"

// right is one to do something with a kind of objects.
type right struct{ account, verb, resource string }

func (r right) String() string { return r.account + " " + r.verb + " " + r.resource }

// askedInside are rights that the API server asks for while it admits another request. No request has their names.
func askedInside(r right) bool {
	return strings.HasSuffix(r.resource, "/finalizers") || r.resource == "certificates.k8s.io/signers"
}

// rights compares the roles with the audit logs in a directory.
func rights(audit string) ([]string, error) {
	roles, err := granted("packaging/kubernetes/rbac")
	if err != nil {
		return nil, err
	}
	used, refused, err := asked(audit)
	if err != nil {
		return nil, err
	}
	excuses, err := os.ReadFile(filepath.Join(module, "testdata", "rights.txt"))
	if err != nil {
		return nil, err
	}
	return compare(roles, used, refused, string(excuses)), nil
}

func resourceOf(group, resource string) string {
	if group == "" {
		return resource
	}
	return group + "/" + resource
}

// granted are the rights of the roles in a directory. A role has the name of its account.
func granted(dir string) (map[right]bool, error) {
	all := map[right]bool{}
	for _, account := range accounts {
		file, err := os.Open(filepath.Join(dir, strings.TrimPrefix(account, "godwit-")+".yaml"))
		if err != nil {
			return nil, err
		}
		err = readRoles(file, account, all)
		if err := errors.Join(err, file.Close()); err != nil {
			return nil, fmt.Errorf("read the roles of %s: %w", account, err)
		}
	}
	return all, nil
}

func readRoles(from io.Reader, account string, all map[right]bool) error {
	for documents := yaml.NewDecoder(from); ; {
		var role struct {
			Kind  string
			Rules []struct {
				APIGroups []string `yaml:"apiGroups"`
				Resources []string
				Verbs     []string
			}
		}
		if err := documents.Decode(&role); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						all[right{account, verb, resourceOf(group, resource)}] = true
					}
				}
			}
		}
	}
}

// event is a line of an audit log, as far as it matters.
type event struct {
	Verb             string
	User             struct{ Username string }
	ImpersonatedUser struct{ Username string }
	ObjectRef        struct{ APIGroup, Resource, Subresource string }
	Annotations      map[string]string
}

// asked are the rights that programs needed, by the audit logs in a directory, and those that they were refused.
func asked(dir string) (used, refused map[right]bool, err error) {
	used, refused = map[right]bool{}, map[right]bool{}
	logs, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, log := range logs {
		file, err := os.Open(filepath.Join(dir, log.Name()))
		if err != nil {
			return nil, nil, err
		}
		err = readAudit(file, used, refused)
		if err := errors.Join(err, file.Close()); err != nil {
			return nil, nil, fmt.Errorf("read audit log %s: %w", log.Name(), err)
		}
	}
	return used, refused, nil
}

// mostBytes of a line.
const mostBytes = 1 << 20

func readAudit(from io.Reader, used, refused map[right]bool) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, mostBytes)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // the last line of a server that was killed
		}
		name := cmp.Or(e.ImpersonatedUser.Username, e.User.Username)
		account, ours := strings.CutPrefix(name, accountPrefix)
		if !ours || !slices.Contains(accounts, account) || e.ObjectRef.Resource == "" {
			continue
		}
		resource := resourceOf(e.ObjectRef.APIGroup, e.ObjectRef.Resource)
		if e.ObjectRef.Subresource != "" {
			resource += "/" + e.ObjectRef.Subresource
		}
		r := right{account, e.Verb, resource}
		if e.Annotations["authorization.k8s.io/decision"] == "forbid" {
			refused[r] = true
		} else {
			used[r] = true
		}
	}
	return lines.Err()
}

// compare says which rights of the roles no suite has used, and which were refused. excuses has a line for each that is
// known, with its reason.
func compare(granted, used, refused map[right]bool, excuses string) (wrong []string) {
	excused := map[string]bool{}
	for line := range strings.Lines(excuses) {
		if words := strings.Fields(line); len(words) > 4 && words[0] != "#" {
			excused[strings.Join(words[:4], " ")] = true
		}
	}
	var found []string
	for r := range granted {
		// A watch begins with a list, which this API server answers within the watch.
		listed := r.verb == "list" && used[right{r.account, "watch", r.resource}]
		if !used[r] && !listed && !askedInside(r) {
			found = append(found, "unused "+r.String())
		}
	}
	for r := range refused {
		found = append(found, "refused "+r.String())
	}
	for _, f := range found {
		if !excused[f] {
			wrong = append(wrong, f)
		}
	}
	slices.Sort(wrong)
	return wrong
}
