// Package scripted has the names of containerd/nri's package stub that its own tests use, and runs a plugin in Rust: each event passes through
// that to the handlers in Go. ../../conformance puts it in the place of the stub.
package scripted

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
)

type (
	Stub      = stub.Stub
	EventMask = stub.EventMask

	ConfigureInterface           = stub.ConfigureInterface
	SynchronizeInterface         = stub.SynchronizeInterface
	RunPodInterface              = stub.RunPodInterface
	UpdatePodInterface           = stub.UpdatePodInterface
	StopPodInterface             = stub.StopPodInterface
	RemovePodInterface           = stub.RemovePodInterface
	PostUpdatePodInterface       = stub.PostUpdatePodInterface
	CreateContainerInterface     = stub.CreateContainerInterface
	StartContainerInterface      = stub.StartContainerInterface
	UpdateContainerInterface     = stub.UpdateContainerInterface
	StopContainerInterface       = stub.StopContainerInterface
	RemoveContainerInterface     = stub.RemoveContainerInterface
	PostCreateContainerInterface = stub.PostCreateContainerInterface
	PostStartContainerInterface  = stub.PostStartContainerInterface
	PostUpdateContainerInterface = stub.PostUpdateContainerInterface
)

type Option func(*plugin) error

func WithPluginName(name string) Option {
	return func(p *plugin) error { p.name = name; return nil }
}

func WithPluginIdx(idx string) Option {
	return func(p *plugin) error { p.idx = idx; return nil }
}

func WithSocketPath(path string) Option {
	return func(p *plugin) error { p.socket = path; return nil }
}

func WithOnClose(onClose func()) Option {
	return func(p *plugin) error { p.onClose = onClose; return nil }
}

func WithDialer(dial func(string) (net.Conn, error)) Option {
	return func(p *plugin) error { p.dial = dial; return nil }
}

func WithFailurePolicy(policy *api.FailurePolicy) Option {
	return func(p *plugin) error {
		if policy == nil {
			return errors.New("no failure policy")
		}
		p.policy = policy
		return nil
	}
}

// plugin is a plugin in Rust. The stub within it is never started: it only passes events to the handlers.
type plugin struct {
	Stub
	api.PluginService
	handlers          any
	name, idx, socket string
	onClose           func()
	dial              func(string) (net.Conn, error)
	policy            *api.FailurePolicy

	control    string
	server     *ttrpc.Server
	process    *exec.Cmd
	configured chan error
	ended      chan struct{}
	configure  sync.Once
	about      *api.ConfigureRequest
}

func New(handlers any, options ...Option) (Stub, error) {
	p := &plugin{handlers: handlers}
	for _, option := range options {
		if err := option(p); err != nil {
			return nil, err
		}
	}
	inner, err := stub.New(handlers, stub.WithPluginName(p.name), stub.WithPluginIdx(p.idx))
	if err != nil {
		return nil, err
	}
	p.Stub, p.PluginService = inner, inner.(api.PluginService)
	return p, nil
}

func (p *plugin) Configure(ctx context.Context, request *api.ConfigureRequest) (*api.ConfigureResponse, error) {
	handler := p.handlers.(stub.ConfigureInterface)
	events, err := handler.Configure(ctx, request.Config, request.RuntimeName, request.RuntimeVersion)
	p.about = request
	p.configure.Do(func() { p.configured <- err })
	return &api.ConfigureResponse{Events: int32(events)}, err
}

func (p *plugin) Start(ctx context.Context) error {
	folder, err := os.MkdirTemp("", "nri-control-")
	if err != nil {
		return err
	}
	p.control = filepath.Join(folder, "s")
	listener, err := net.Listen("unix", p.control)
	if err != nil {
		return err
	}
	if p.server, err = ttrpc.NewServer(); err != nil {
		return err
	}
	api.RegisterPluginService(p.server, p)
	go func() { _ = p.server.Serve(context.Background(), listener) }()

	args := []string{p.socket, p.control}
	if p.policy != nil {
		// Without a word of the two there would be no policy at all.
		args = append(args, "policy")
		if p.policy.FailRequest {
			args = append(args, "fail")
		}
		if p.policy.KeepConnected {
			args = append(args, "keep")
		}
	}
	p.configured, p.ended = make(chan error, 1), make(chan struct{})
	p.process = exec.Command(os.Getenv("NRI_SCRIPTED_PLUGIN"), args...)
	p.process.Env = []string{"NRI_PLUGIN_NAME=" + p.name, "NRI_PLUGIN_IDX=" + p.idx}
	p.process.Stderr = os.Stderr
	if err := p.launch(); err != nil {
		return err
	}
	count()
	go func() {
		failure := p.process.Wait()
		wasConfigured := true
		p.configure.Do(func() {
			wasConfigured = false
			p.configured <- fmt.Errorf("the plugin has ended: %v", failure)
		})
		_ = p.server.Close()
		_ = os.RemoveAll(folder)
		close(p.ended)
		if wasConfigured && p.onClose != nil {
			p.onClose()
		}
	}()
	select {
	case err := <-p.configured:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// launch starts the process: with its socket as descriptor 3 if the test has its own way to connect.
func (p *plugin) launch() error {
	if p.dial == nil {
		return p.process.Start()
	}
	runtime, err := p.dial(p.socket)
	if err != nil {
		return err
	}
	here, there, err := pair()
	if err != nil {
		return err
	}
	p.process.ExtraFiles = []*os.File{there}
	p.process.Env = append(p.process.Env, "NRI_PLUGIN_SOCKET=3")
	if err := p.process.Start(); err != nil {
		return err
	}
	_ = there.Close()
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		_, _ = to.Close(), from.Close()
	}
	go pass(here, runtime)
	go pass(runtime, here)
	return nil
}

func (p *plugin) Stop() {
	if p.process != nil && p.process.Process != nil {
		_ = p.process.Process.Kill()
	}
}

func (p *plugin) Wait() {
	if p.ended != nil {
		<-p.ended
	}
}

func (p *plugin) UpdateContainers(updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	conn, err := net.Dial("unix", p.control+".calls")
	if err != nil {
		return nil, err
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	reply, err := api.NewRuntimeClient(client).UpdateContainers(context.Background(), &api.UpdateContainersRequest{Update: updates})
	return reply.GetFailed(), err
}

func (p *plugin) RegistrationTimeout() time.Duration {
	return time.Duration(p.about.GetRegistrationTimeout()) * time.Millisecond
}

func (p *plugin) RequestTimeout() time.Duration {
	return time.Duration(p.about.GetRequestTimeout()) * time.Millisecond
}

func (p *plugin) RuntimeNRIVersion() string { return p.about.GetNRIVersion() }

// pair returns a connection, and the file of its other end.
func pair() (net.Conn, *os.File, error) {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("nri-pair-%d-%d", os.Getpid(), time.Now().UnixNano()))
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	dialed, err := net.Dial("unix", path)
	if err != nil {
		return nil, nil, err
	}
	defer dialed.Close()
	there, err := dialed.(*net.UnixConn).File()
	if err != nil {
		return nil, nil, err
	}
	here, err := listener.Accept()
	return here, there, err
}

// count adds a line to a file, so that the number of plugins that ran is known.
func count() {
	if path := os.Getenv("NRI_SCRIPTED_COUNT"); path != "" {
		if file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err == nil {
			_, _ = file.WriteString("plugin\n")
			_ = file.Close()
		}
	}
}
