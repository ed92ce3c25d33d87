//go:build integration

package browser

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/daemon/dashboard/dashboardtest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// What guests and other nodes name is text on both pages, also in thirty long names on a phone, and runs nothing. The
// page of a VM that is deleted meanwhile says that there is none.
func TestHostileNames(t *testing.T) {
	const element = `<img src=x onerror="document.title='owned'"></td></script><script>document.title='owned'</script>`
	source := dashboardtest.Fixtures(time.Now())
	source.Warning = element
	for _, vm := range source.VMList {
		vm.Note, vm.Vmm, vm.Addresses = element, element, []string{element}
		if vm.GetOwner().GetNode() != "" {
			vm.Owner.Node = element
		}
	}
	for _, node := range source.NodeList {
		node.Name, node.Version = element, element
	}
	for _, move := range source.MoveList {
		move.Operation.Reason, move.Operation.Source, move.Waiting, move.Step = element, element, element, element
	}
	for _, s := range source.Snapshot {
		s.Name, s.Node = element, element
	}
	for i := range 30 {
		source.VMList = append(source.VMList, &nodev1.VMInfo{Status: "running",
			Vm: dashboardtest.VM(fmt.Sprintf("%d%s", i, strings.Repeat("w", 60))), Owner: &nodev1.Owner{Node: "a"}})
	}
	c := start(t)
	p := c.open(serve(t, source).url)
	p.until("document.getElementById('link')")
	p.until(live)
	base := strings.Trim(p.eval("location.href"), `"`)
	open := func() *tab {
		vm := c.open(base + "vm?namespace=default&id=web")
		vm.until("document.readyState === 'complete' && document.querySelector('h2')")
		return vm
	}
	for name, page := range map[string]*tab{"list": p, "VM": open()} {
		for _, width := range []int{390, 1100} {
			page.look(width, 900, "light")
			if got := page.eval("document.documentElement.scrollWidth"); got != strconv.Itoa(width) {
				t.Errorf("%s: the page is %s wide, the screen %d", name, got, width)
			}
		}
		if got := page.eval("document.querySelectorAll('img, td script, li script').length"); got != "0" {
			t.Errorf("%s: a name became %s elements", name, got)
		}
		if got := page.eval("document.title"); strings.Contains(got, "owned") {
			t.Errorf("%s: a name ran as a script: %s", name, got)
		}
	}
	source.VMList = nil
	const none = "There is no VM of this name"
	for !strings.Contains(open().eval("document.body.innerText"), none) { // godwitd looks now and then
		time.Sleep(200 * time.Millisecond)
	}
}
