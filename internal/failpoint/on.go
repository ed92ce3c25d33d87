//go:build points

package failpoint

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc"
)

// Enabled reports whether this program has points.
const Enabled = true

// Dir is where this program's points are; empty: nowhere. It has the log of all points that were
// passed. A file named after a point holds a program at the pass that the number in the file
// says. While a program is held there, a file .held has its pid.
var Dir = sync.OnceValue(func() string { return os.ExpandEnv(os.Getenv(EnvDir)) })

// LogName is the log of points that were passed: lines of pid, point and side.
const LogName = "log"

const lookInterval = 2 * time.Millisecond

var order sync.Mutex // of passes in this process

func pass(name, side string) {
	dir := Dir()
	if dir == "" {
		return
	}
	order.Lock()
	held := note(dir, name+"."+side)
	order.Unlock()
	for held {
		time.Sleep(lookInterval)
		_, err := os.Stat(filepath.Join(dir, name+"."+side))
		held = err == nil
	}
}

// note reports whether the program is to be held here.
func note(dir, point string) bool {
	log, err := os.OpenFile(filepath.Join(dir, LogName), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return false // a program that has nothing to do with the test
	}
	defer log.Close()
	fmt.Fprintf(log, "%d %s\n", os.Getpid(), point)
	file := filepath.Join(dir, point)
	data, err := os.ReadFile(file)
	left, aerr := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || aerr != nil {
		return false
	}
	if left > 1 {
		_ = os.WriteFile(file, []byte(strconv.Itoa(left-1)), 0o600)
		return false
	}
	return left == 1 && os.WriteFile(file+".held", []byte(strconv.Itoa(os.Getpid())), 0o600) == nil
}

// asks are calls that change nothing, or that do not belong to an operation.
var asks = []string{
	"Query", "State", "Wait", "Pids", "Stats", "Connect", "Get", "List", "Operation", "Owed", "Status", "Announce",
	"Watch", "Events",
	"VMs", "Nodes", "Version", "Inspect", "GetImage", "ReadUUID", "Mounts", "Stat", "Info", "Metrics",
	"ListPids", "Server", "ContainerImage",
}

func asked() bool {
	_, err := os.Stat(filepath.Join(Dir(), AsksName))
	return err == nil
}

// call makes points of a call by its full method.
func call[R any](method string, do func() (R, error)) (R, error) {
	service, name := path.Split(method)
	service = strings.Trim(service, "/")
	point := service[strings.LastIndexByte(service, '.')+1:] + "." + name
	if slices.Contains(asks, name) && !(strings.HasPrefix(point, "Task.") && asked()) {
		return do()
	}
	pass(point, Before)
	resp, err := do()
	if err == nil {
		pass(point, After)
	}
	return resp, err
}

// Calls makes points of the calls that a server answers.
func Calls(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (any,
	error) {
	return call(info.FullMethod, func() (any, error) { return method(ctx, unmarshal) })
}

// Server makes points of the calls that a server answers.
func Server() []ttrpc.ServerOpt {
	return []ttrpc.ServerOpt{ttrpc.WithChainUnaryServerInterceptor(Calls)}
}

// Client makes points of the calls that a client makes.
func Client() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
		cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		_, err := call(method, func() (any, error) { return nil, invoke(ctx, method, req, reply, cc, opts...) })
		return err
	})}
}
