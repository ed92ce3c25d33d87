//go:build integration

package browser

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// chromium is a headless Chromium, driven by the DevTools protocol over two pipes: JSON messages, each ended by a NUL.
type chromium struct {
	t     *testing.T
	to    *os.File
	from  *bufio.Reader
	calls int
}

// patience is what a browser may take for all that one test asks, on a host that has much else to do.
const patience = 10 * time.Minute

// tab is one page of it.
type tab struct {
	*chromium
	session string
	logged  []string // what the page's console and the policy of the page complained of
}

// start runs a Chromium that ends with the test.
func start(t *testing.T, args ...string) *chromium {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("NOT RUN: there is no chromium in PATH, so the dashboard is not tried in a browser: " +
			"apt-get install chromium")
	}
	in, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, append([]string{"--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
		"--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage", "--remote-debugging-pipe",
		"--user-data-dir=" + t.TempDir()}, args...)...)
	cmd.ExtraFiles = []*os.File{in, out}                  // 3 and 4: the protocol's own numbers
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its many processes end together
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	out.Close()
	// A browser that hangs ends before the test's own timeout would take the whole package away.
	hung := time.AfterFunc(patience, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	c := &chromium{t: t, to: to, from: bufio.NewReader(from)}
	t.Cleanup(func() {
		hung.Stop()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // until all its processes have closed stderr
		to.Close()
		from.Close()
		if t.Failed() {
			t.Logf("chromium: %s", errs.String())
		}
	})
	return c
}

// message is what Chromium sends: an answer (ID), or an event (Method).
type message struct {
	ID        int
	SessionID string
	Method    string
	Params    struct {
		Entry            struct{ Level, Text, URL string }
		ExceptionDetails struct{ Text string }
	}
	Result json.RawMessage
	Error  struct{ Message string }
}

// call asks for one thing and answers its result. What the pages log comes in between.
func (c *chromium) call(session, method string, params any, logged func(string)) json.RawMessage {
	c.t.Helper()
	c.calls++
	data, err := json.Marshal(map[string]any{"id": c.calls, "method": method, "params": params, "sessionId": session})
	if err != nil {
		c.t.Fatal(err)
	}
	if session == "" {
		data = []byte(strings.Replace(string(data), `,"sessionId":""`, "", 1))
	}
	if _, err := c.to.Write(append(data, 0)); err != nil {
		c.t.Fatalf("chromium: %s: %v", method, err)
	}
	for {
		data, err := c.from.ReadBytes(0)
		if err != nil {
			c.t.Fatalf("chromium: %s: %v", method, err)
		}
		var m message
		if err := json.Unmarshal(data[:len(data)-1], &m); err != nil {
			c.t.Fatalf("chromium: %s: %v", data, err)
		}
		switch {
		case m.ID == c.calls && m.Error.Message != "":
			c.t.Fatalf("chromium: %s: %s", method, m.Error.Message)
		case m.ID == c.calls:
			return m.Result
		case logged != nil && m.SessionID == session && m.Params.Entry.Level == "error":
			logged(m.Params.Entry.Text + " " + m.Params.Entry.URL)
		case logged != nil && m.SessionID == session && m.Method == "Runtime.exceptionThrown":
			logged(m.Params.ExceptionDetails.Text)
		}
	}
}

// open makes a tab and loads a page into it.
func (c *chromium) open(url string) *tab {
	c.t.Helper()
	var target struct{ TargetID, SessionID string }
	c.decode(c.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, nil), &target)
	c.decode(c.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, nil),
		&target)
	p := &tab{chromium: c, session: target.SessionID}
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		p.do(domain+".enable", nil)
	}
	p.do("Page.navigate", map[string]any{"url": url})
	return p
}

func (c *chromium) decode(data json.RawMessage, into any) {
	c.t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		c.t.Fatalf("chromium: %s: %v", data, err)
	}
}

func (p *tab) do(method string, params any) json.RawMessage {
	p.t.Helper()
	if params == nil {
		params = struct{}{}
	}
	return p.call(p.session, method, params, func(text string) { p.logged = append(p.logged, text) })
}

// eval runs an expression in the page and answers its value as JSON.
func (p *tab) eval(expression string) string {
	p.t.Helper()
	var answer struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails struct{ Text string }
	}
	p.decode(p.do("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true,
		"awaitPromise": true}), &answer)
	if answer.ExceptionDetails.Text != "" {
		return answer.ExceptionDetails.Text
	}
	return string(answer.Result.Value)
}

// until waits for a condition of the page; the browser's own end bounds it.
func (p *tab) until(condition string) {
	p.t.Helper()
	for p.eval("!!("+condition+")") != "true" {
		time.Sleep(20 * time.Millisecond)
	}
}

// look sets what the page is looked at with: a width and a height in CSS pixels, and a colour scheme.
func (p *tab) look(width, height int, scheme string) {
	p.t.Helper()
	p.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1,
		"mobile": width < 500})
	p.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{
		{"name": "prefers-color-scheme", "value": scheme}}})
}

// picture writes what is seen into a PNG file.
func (p *tab) picture(file string) {
	p.t.Helper()
	var shot struct{ Data []byte }
	p.decode(p.do("Page.captureScreenshot", map[string]any{"format": "png"}), &shot)
	if err := os.WriteFile(file, shot.Data, 0o644); err != nil {
		p.t.Fatal(err)
	}
}
