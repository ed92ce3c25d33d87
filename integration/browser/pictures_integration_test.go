//go:build integration

package browser

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/daemon/dashboard/dashboardtest"
)

// On a phone and a desktop, light and dark, nothing is wider than the screen and text stands out from its ground.
// GODWIT_SCREENSHOTS names the directory that gets the pictures.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("GODWIT_SCREENSHOTS")
	if dir == "" {
		dir = t.TempDir()
	}
	source := dashboardtest.Fixtures(time.Now())
	c := start(t)
	p := c.open(serve(t, source).url)
	p.until("document.getElementById('link')")
	p.until(live)
	base := strings.Trim(p.eval("location.href"), `"`)
	vm := c.open(base + "vm?namespace=default&id=web")
	vm.until("document.readyState === 'complete' && document.querySelector('h2')")
	for name, shot := range map[string]struct {
		tab           *tab
		width, height int
		scheme        string
	}{
		"dashboard-light":      {p, 1100, 990, "light"},
		"dashboard-dark":       {p, 1100, 990, "dark"},
		"dashboard-phone":      {p, 390, 844, "light"},
		"dashboard-phone-dark": {p, 390, 844, "dark"},
		"dashboard-vm":         {vm, 1100, 900, "light"},
		"dashboard-vm-phone":   {vm, 390, 844, "dark"},
	} {
		shot.tab.look(shot.width, shot.height, shot.scheme)
		if got := shot.tab.eval("document.documentElement.scrollWidth"); got != strconv.Itoa(shot.width) {
			t.Errorf("%s: the page is %s wide, the screen %d", name, got, shot.width)
		}
		if got := shot.tab.eval(contrast); got != `""` {
			t.Errorf("%s: hard to read: %s", name, got)
		}
		file := filepath.Join(dir, name+".png")
		shot.tab.picture(file)
		const most = 150 << 10
		if info, err := os.Stat(file); err != nil || info.Size() > most || info.Size() < most/15 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// contrast names texts whose contrast with their ground is below 4.5, as WCAG 2.1 (1.4.3) computes it.
const contrast = `(() => {
	const parse = c => (c.match(/[\d.]+/g) || []).map(Number);
	const light = c => { const [r, g, b] = c.slice(0, 3).map(v => { v /= 255;
		return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 }); return 0.2126*r + 0.7152*g + 0.0722*b };
	const ground = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
		if (c.length && (c.length < 4 || c[3] > 0)) return c } return [255, 255, 255] };
	const bad = [];
	for (const e of document.querySelectorAll("body *")) {
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || !e.offsetParent) continue;
		const a = light(parse(getComputedStyle(e).color)), b = light(ground(e));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < 4.5) bad.push(e.textContent.trim() + " " + ratio.toFixed(1));
	}
	return bad.join(", ");
})()`
