package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"interop/peer/conformance"
)

const (
	serviceName = "ttrpc.conformance.v1.Conformance"
	detailType  = "type.googleapis.com/ttrpc.conformance.v1.EchoResponse"
)

func runServer(args []string) error {
	flags := flag.NewFlagSet("server", flag.ExitOnError)
	address := flags.String("listen", "", "address to listen on, unix:///path")
	executed := flags.String("executed", "", "file to which Echo appends the first 8 bytes of its payload")
	flags.Parse(args)
	path, err := unixPath(*address)
	if err != nil {
		return err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	service := newService()
	if *executed != "" {
		if service.executed, err = os.OpenFile(*executed, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
			return err
		}
	}
	server, err := ttrpc.NewServer(ttrpc.WithUnaryServerInterceptor(service.intercept))
	if err != nil {
		return err
	}
	conformance.RegisterConformanceService(server, service)
	fmt.Println("listening", *address)
	os.Stdout.Sync()
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			return err
		}
		service.serveConnection(server, conn)
	}
}

// service implements the unary methods; the streaming ones are in a file of their own, for the versions that have them.
type service struct {
	connections atomic.Int64
	inFlight    atomic.Int64
	total       atomic.Int64
	cancelled   atomic.Int64
	// For a client that counts what was executed, whatever happens to this process; nil for none.
	executed *os.File

	mu      sync.Mutex
	waiting map[string]chan struct{}
}

func newService() *service {
	return &service{waiting: make(map[string]chan struct{})}
}

type peerKey struct{}
type methodKey struct{}

// serveConnection gives each connection a context of its own. The library passes the context of Serve on to handlers,
// but nothing of what a handshake found out, so this is how a handler gets to know its peer.
func (s *service) serveConnection(server *ttrpc.Server, conn *net.UnixConn) {
	ctx := context.Background()
	handshake := ttrpc.UnixCredentialsFunc(func(peer *unix.Ucred) error {
		ctx = context.WithValue(ctx, peerKey{}, peer)
		return nil
	})
	if _, _, err := handshake.Handshake(ctx, conn); err != nil {
		fmt.Fprintln(os.Stderr, "handshake:", err)
		conn.Close()
		return
	}
	s.connections.Add(1)
	single := &singleListener{address: conn.LocalAddr(), closed: make(chan struct{})}
	single.conn = &watchedConn{Conn: conn, onClose: func() {
		s.connections.Add(-1)
		single.Close()
	}}
	go server.Serve(ctx, single)
}

// singleListener yields one connection, then waits until that is closed.
type singleListener struct {
	conn      net.Conn
	address   net.Addr
	taken     atomic.Bool
	closed    chan struct{}
	closeOnce sync.Once
}

func (l *singleListener) Accept() (net.Conn, error) {
	if l.taken.CompareAndSwap(false, true) {
		return l.conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *singleListener) Close() error {
	l.closeOnce.Do(func() { close(l.closed) })
	return nil
}

func (l *singleListener) Addr() net.Addr { return l.address }

type watchedConn struct {
	net.Conn
	onClose   func()
	closeOnce sync.Once
}

func (c *watchedConn) Close() error {
	err := c.Conn.Close()
	c.closeOnce.Do(c.onClose)
	return err
}

func (s *service) intercept(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (interface{}, error) {
	defer s.begin(ctx)()
	return method(context.WithValue(ctx, methodKey{}, info.FullMethod), unmarshal)
}

// begin counts a call until the function that it returns is called.
func (s *service) begin(ctx context.Context) func() {
	s.total.Add(1)
	s.inFlight.Add(1)
	return func() {
		s.inFlight.Add(-1)
		if ctx.Err() != nil {
			s.cancelled.Add(1)
		}
	}
}

func (s *service) Echo(ctx context.Context, request *conformance.EchoRequest) (*conformance.EchoResponse, error) {
	if s.executed != nil && len(request.Payload) >= 8 {
		if _, err := s.executed.Write(request.Payload[:8]); err != nil {
			return nil, err
		}
	}
	if request.ResponseSize > 0 {
		return &conformance.EchoResponse{Payload: make([]byte, request.ResponseSize)}, nil
	}
	return &conformance.EchoResponse{Payload: request.Payload}, nil
}

func (s *service) Fail(ctx context.Context, request *conformance.FailRequest) (*conformance.Empty, error) {
	st := &spb.Status{Code: request.Code, Message: request.Message}
	if len(request.Detail) > 0 {
		st.Details = []*detail{{TypeUrl: detailType, Value: request.Detail}}
	}
	return nil, status.ErrorProto(st)
}

func (s *service) Sleep(ctx context.Context, request *conformance.SleepRequest) (*conformance.Empty, error) {
	if err := pause(ctx, time.Duration(request.Millis)*time.Millisecond); err != nil {
		return nil, err
	}
	return &conformance.Empty{}, nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *service) Inspect(ctx context.Context, _ *conformance.Empty) (*conformance.InspectResponse, error) {
	response := &conformance.InspectResponse{TimeoutNano: remainingNanos(ctx)}
	for _, entry := range metadataEntries(ctx) {
		response.Metadata = append(response.Metadata, &conformance.InspectResponse_Entry{Key: entry[0], Value: entry[1]})
	}
	if full, ok := ctx.Value(methodKey{}).(string); ok {
		response.Service, response.Method, _ = strings.Cut(strings.TrimPrefix(full, "/"), "/")
	}
	if peer, ok := ctx.Value(peerKey{}).(*unix.Ucred); ok {
		response.PeerUid, response.PeerGid, response.PeerPid = peer.Uid, peer.Gid, peer.Pid
	}
	return response, nil
}

func remainingNanos(ctx context.Context) int64 {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return int64(time.Until(deadline))
}

// metadataEntries lists the metadata as pairs. The library keeps the order of the values of a key, but not that of the
// keys, which are sorted here to make the answer predictable.
func metadataEntries(ctx context.Context) [][2]string {
	metadata, _ := ttrpc.GetMetadata(ctx)
	var keys []string
	for key := range metadata {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	var entries [][2]string
	for _, key := range keys {
		for _, value := range metadata[key] {
			entries = append(entries, [2]string{key, value})
		}
	}
	return entries
}

func (s *service) Wait(ctx context.Context, request *conformance.KeyRequest) (*conformance.Empty, error) {
	if err := s.waitFor(ctx, request.Key); err != nil {
		return nil, err
	}
	return &conformance.Empty{}, nil
}

func (s *service) waitFor(ctx context.Context, key string) error {
	s.mu.Lock()
	released, ok := s.waiting[key]
	if !ok {
		released = make(chan struct{})
		s.waiting[key] = released
	}
	s.mu.Unlock()
	select {
	case <-released:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Release frees those who wait now; it is not remembered for later ones.
func (s *service) Release(ctx context.Context, request *conformance.KeyRequest) (*conformance.Empty, error) {
	s.mu.Lock()
	if released, ok := s.waiting[request.Key]; ok {
		close(released)
		delete(s.waiting, request.Key)
	}
	s.mu.Unlock()
	return &conformance.Empty{}, nil
}

// Panic shows what the library makes of a panic, so nothing here recovers.
func (s *service) Panic(context.Context, *conformance.Empty) (*conformance.Empty, error) {
	panic("this handler panics, as asked")
}

func (s *service) Stats(context.Context, *conformance.Empty) (*conformance.StatsResponse, error) {
	return &conformance.StatsResponse{
		Connections:    uint64(s.connections.Load()),
		CallsInFlight:  uint64(s.inFlight.Load()),
		TasksAlive:     uint64(runtime.NumGoroutine()),
		CallsTotal:     uint64(s.total.Load()),
		CallsCancelled: uint64(s.cancelled.Load()),
	}, nil
}

func asAsked(ctx context.Context, code int32) error {
	message := fmt.Sprintf("as asked; timeout_nano=%d", remainingNanos(ctx))
	for _, entry := range metadataEntries(ctx) {
		message += "; " + entry[0] + "=" + entry[1]
	}
	return status.Error(codes.Code(code), message)
}
