package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"interop/peer/conformance"
)

const (
	frameMax = 4 << 20
	// What a Request for Echo adds to its payload: service (2 + 32 bytes), method (2 + 4), and two headers of 5 bytes,
	// for the payload of the Request and for the payload of the EchoRequest therein.
	echoRequestOverhead = 50
	// What a Response adds: two headers of 5 bytes, and 2 bytes for an empty status, which some servers send.
	echoResponseOverhead = 12

	overLimitWaits = 1000
	callers        = 64
	callsPerCaller = 1000
)

var cases = map[string]caseFunc{
	"empty_unary":                 emptyUnary,
	"zero_length_payload":         zeroLengthPayload,
	"large_unary":                 largeUnary,
	"status_code_and_message":     statusCodeAndMessage,
	"status_details":              statusDetails,
	"unimplemented_method":        unimplementedMethod,
	"unimplemented_service":       unimplementedService,
	"metadata_order":              metadataOrder,
	"timeout_is_seen":             timeoutIsSeen,
	"peer_credentials":            peerCredentials,
	"deadline_on_sleeping_server": deadlineOnSleepingServer,
	"cancel_after_begin":          cancelAfterBegin,
	"calls_after_cancel":          callsAfterCancel,
	"wait_and_release":            waitAndRelease,
	"wait_and_release_over_limit": waitAndReleaseOverLimit,
	"oversize_refused_locally":    oversizeRefusedLocally,
	"oversize_reply":              oversizeReply,
	"pending_call_at_disconnect":  pendingCallAtDisconnect,
	"many_connections":            manyConnections,
	"concurrent_unary":            concurrentUnary,
	"panic_is_internal":           panicIsInternal,
}

// pattern fills a payload so that bytes that moved or got lost show up.
func pattern(size int, seed uint64) []byte {
	payload := make([]byte, size)
	state := seed*0x9e3779b97f4a7c15 + 1
	for i := range payload {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		payload[i] = byte(state)
	}
	return payload
}

func echo(ctx context.Context, c *connection, payload []byte) error {
	response, err := c.Echo(ctx, &conformance.EchoRequest{Payload: payload})
	if err != nil {
		return fmt.Errorf("Echo of %d bytes: %s", len(payload), describe(err))
	}
	if !bytes.Equal(response.Payload, payload) {
		return fmt.Errorf("Echo of %d bytes brought %d other ones", len(payload), len(response.Payload))
	}
	return nil
}

func emptyUnary(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	if _, err := c.Sleep(context.Background(), &conformance.SleepRequest{}); err != nil {
		return "", errors.New(describe(err))
	}
	return "", nil
}

func zeroLengthPayload(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	return "", echo(context.Background(), c, nil)
}

func largeUnary(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	t.step("a request of 4 MiB")
	if err := echo(context.Background(), c, pattern(frameMax-echoRequestOverhead, 1)); err != nil {
		return "", err
	}
	t.step("a reply of 4 MiB")
	size := uint32(frameMax - echoResponseOverhead)
	response, err := c.Echo(context.Background(), &conformance.EchoRequest{ResponseSize: size})
	if err != nil {
		return "", fmt.Errorf("a reply of %d bytes: %s", size, describe(err))
	}
	if len(response.Payload) != int(size) {
		return "", fmt.Errorf("a reply of %d bytes came with %d", size, len(response.Payload))
	}
	return "", nil
}

func statusCodeAndMessage(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	for code := int32(1); code <= 16; code++ {
		message := fmt.Sprintf("failure %d: größer als geplant, 失敗", code)
		_, err := c.Fail(context.Background(), &conformance.FailRequest{Code: code, Message: message})
		st, ok := status.FromError(err)
		if err == nil || !ok || int32(st.Code()) != code || st.Message() != message {
			return "", fmt.Errorf("wanted status %d %q, got %s", code, message, describe(err))
		}
	}
	return "", nil
}

func statusDetails(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	value := pattern(1000, 2)
	_, err = c.Fail(context.Background(), &conformance.FailRequest{Code: 9, Message: "with a detail", Detail: value})
	if err := wantCode(err, codes.FailedPrecondition); err != nil {
		return "", err
	}
	st, _ := status.FromError(err)
	details := st.Proto().Details
	if len(details) != 1 {
		return "", fmt.Errorf("%d details arrived", len(details))
	}
	if details[0].TypeUrl != detailType || !bytes.Equal(details[0].Value, value) {
		return "", fmt.Errorf("a detail of type %q and %d bytes arrived", details[0].TypeUrl, len(details[0].Value))
	}
	return "", nil
}

func unimplementedMethod(t *trial) (string, error) {
	return unimplemented(t, serviceName, "NoSuchMethod")
}

func unimplementedService(t *trial) (string, error) {
	return unimplemented(t, "ttrpc.conformance.v1.NoSuchService", "Echo")
}

func unimplemented(t *trial, service, method string) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	_, err = within(patience, "the call", func() (struct{}, error) {
		return struct{}{}, c.raw.Call(context.Background(), service, method, &conformance.Empty{}, &conformance.Empty{})
	})
	observed := describe(err)
	if err := wantCode(err, codes.Unimplemented); err != nil {
		return "", err
	}
	return observed, alive(c, "after that")
}

var orderedValues = []string{"first", "second", "third"}

func orderedMetadata() context.Context {
	return ttrpc.WithMetadata(context.Background(), ttrpc.MD{"tag": orderedValues, "other": {"one"}})
}

func metadataOrder(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	response, err := c.Inspect(orderedMetadata(), &conformance.Empty{})
	if err != nil {
		return "", errors.New(describe(err))
	}
	values := make(map[string][]string)
	for _, entry := range response.Metadata {
		values[entry.Key] = append(values[entry.Key], entry.Value)
	}
	if !reflect.DeepEqual(values, map[string][]string{"tag": orderedValues, "other": {"one"}}) {
		return "", fmt.Errorf("the handler saw %v", values)
	}
	return "", nil
}

func timeoutIsSeen(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), longTimeout)
	defer cancel()
	with, err := c.Inspect(ctx, &conformance.Empty{})
	if err != nil {
		return "", errors.New(describe(err))
	}
	without, err := c.Inspect(context.Background(), &conformance.Empty{})
	if err != nil {
		return "", errors.New(describe(err))
	}
	seen := fmt.Sprintf("%d ns of %v, and %d ns where none was given", with.TimeoutNano, longTimeout, without.TimeoutNano)
	if !plausibleTimeout(with.TimeoutNano) || without.TimeoutNano != 0 {
		return "", errors.New(seen)
	}
	return seen, nil
}

// patience is how long one step may take with a peer that may hang. It takes milliseconds where all is well.
const patience = 20 * time.Second

// longTimeout is one that no case lives to see.
const longTimeout = time.Hour

// plausibleTimeout is longTimeout as a handler sees it: less what has passed, which is little.
func plausibleTimeout(nanos int64) bool {
	return nanos > int64(longTimeout)/2 && nanos <= int64(longTimeout)
}

func peerCredentials(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	response, err := c.Inspect(context.Background(), &conformance.Empty{})
	if err != nil {
		return "", errors.New(describe(err))
	}
	if response.PeerPid == 0 {
		return "", unsupported("this server does not know its peer")
	}
	seen := fmt.Sprintf("uid %d gid %d pid %d", response.PeerUid, response.PeerGid, response.PeerPid)
	own := fmt.Sprintf("uid %d gid %d pid %d", os.Geteuid(), os.Getegid(), os.Getpid())
	if seen != own {
		return "", fmt.Errorf("the handler saw %s of %s", seen, own)
	}
	return "", nil
}

const shortDeadline = 300 * time.Millisecond

// checkDeadline judges a call that got shortDeadline. Five seconds of slack are for machines that are busy.
func checkDeadline(err error, took time.Duration) error {
	if err := wantCode(err, codes.DeadlineExceeded); err != nil {
		return fmt.Errorf("%w, after %v", err, took.Round(time.Millisecond))
	}
	if took < shortDeadline-10*time.Millisecond || took > shortDeadline+5*time.Second {
		return fmt.Errorf("DEADLINE_EXCEEDED after %v", took.Round(time.Millisecond))
	}
	return nil
}

func deadlineOnSleepingServer(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), shortDeadline)
	defer cancel()
	began := time.Now()
	_, err = c.Sleep(ctx, &conformance.SleepRequest{Millis: 10_000})
	if err := checkDeadline(err, time.Since(began)); err != nil {
		return "", err
	}
	return describe(err), alive(c, "after the deadline")
}

// uniqueKey keeps runs against the same server apart.
func uniqueKey(name string) string {
	return fmt.Sprintf("%s-%d-%d", name, os.Getpid(), time.Now().UnixNano())
}

// releaseUntil releases a key again and again until the waiters have ended. A release frees those who wait at that
// moment, and nothing tells this client when the handler of a Wait has come so far.
func releaseUntil(c *connection, key string, ended <-chan struct{}, bound time.Duration) error {
	deadline := time.After(bound)
	for {
		_, err := within(bound, "Release", func() (*conformance.Empty, error) {
			return c.Release(context.Background(), &conformance.KeyRequest{Key: key})
		})
		if err != nil {
			return fmt.Errorf("Release: %w", err)
		}
		select {
		case <-ended:
			return nil
		case <-deadline:
			return fmt.Errorf("Wait did not end within %v of Release", bound)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// untilCallBegins returns once the server has begun one more handler than before, besides those of the questions. The
// count of calls in flight cannot tell: a question may still be counted when its answer has arrived.
func untilCallBegins(c *connection, before uint64) error {
	asked := before
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		asked++
		stats, err := c.Stats(context.Background(), &conformance.Empty{})
		if err != nil {
			return fmt.Errorf("Stats: %s", describe(err))
		}
		if stats.CallsTotal > asked {
			return nil
		}
	}
	return errors.New("Stats never counted the call")
}

func cancelAfterBegin(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	key := uniqueKey("cancel")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	before, err := c.Stats(context.Background(), &conformance.Empty{})
	if err != nil {
		return "", fmt.Errorf("Stats: %s", describe(err))
	}
	ended := make(chan error, 1)
	go func() {
		_, err := c.Wait(ctx, &conformance.KeyRequest{Key: key})
		ended <- err
	}()
	t.step("until its handler has begun")
	if err := untilCallBegins(c, before.CallsTotal); err != nil {
		return "", err
	}
	cancel()
	select {
	case err := <-ended:
		if err := wantCode(err, codes.Canceled); err != nil {
			return "", err
		}
	case <-time.After(patience):
		return "", fmt.Errorf("the cancelled call did not return within %v", patience)
	}
	if _, err := c.Release(context.Background(), &conformance.KeyRequest{Key: key}); err != nil {
		return "", fmt.Errorf("Release: %s", describe(err))
	}
	return "", alive(c, "after the cancellation")
}

func callsAfterCancel(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	var wg sync.WaitGroup
	for i := 0; i < 100; i++ {
		ctx, cancel := context.WithCancel(context.Background())
		wg.Add(1)
		go func() {
			defer wg.Done()
			c.Sleep(ctx, &conformance.SleepRequest{Millis: 50})
		}()
		// Some calls are cancelled before they are written, some while their handlers sleep.
		if i%10 == 0 {
			cancel()
		} else {
			time.AfterFunc(time.Duration(i)*200*time.Microsecond, cancel)
		}
	}
	wg.Wait()
	for i := uint64(0); i < 100; i++ {
		t.step("call %d after the cancelled ones", i)
		if err := echo(context.Background(), c, pattern(64, i)); err != nil {
			return "", err
		}
	}
	return "", nil
}

func waitAndRelease(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	return waits(t, c, 1)
}

func waitAndReleaseOverLimit(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	return waits(t, c, overLimitWaits)
}

func waits(t *trial, c *connection, count int) (string, error) {
	key := uniqueKey("wait")
	results := make(chan error, count)
	for i := 0; i < count; i++ {
		go func() {
			_, err := c.Wait(context.Background(), &conformance.KeyRequest{Key: key})
			results <- err
		}()
	}
	ended := make(chan struct{})
	var refused int
	var wrong error
	go func() {
		defer close(ended)
		for i := 0; i < count; i++ {
			err := <-results
			switch {
			case err == nil:
			case count > 1 && codeOf(err) == codes.ResourceExhausted:
				refused++
			default:
				wrong = err
			}
		}
	}()
	t.step("Release")
	if err := releaseUntil(c, key, ended, patience); err != nil {
		return "", err
	}
	if wrong != nil {
		return "", fmt.Errorf("Wait: %s", describe(wrong))
	}
	return fmt.Sprintf("%d of %d refused", refused, count), nil
}

// rawServer accepts one connection and hands it over as it is.
func rawServer(t *trial) (address string, accepted <-chan net.Conn, cleanup func(), err error) {
	dir, err := os.MkdirTemp("", "raw")
	if err != nil {
		return "", nil, nil, err
	}
	path := filepath.Join(dir, "raw.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		return "", nil, nil, err
	}
	conns := make(chan net.Conn, 1)
	go func() {
		if conn, err := listener.Accept(); err == nil {
			conns <- conn
		}
	}()
	return "unix://" + path, conns, func() { listener.Close(); os.RemoveAll(dir) }, nil
}

func oversizeRefusedLocally(t *trial) (string, error) {
	address, accepted, cleanup, err := rawServer(t)
	if err != nil {
		return "", err
	}
	defer cleanup()
	c, err := t.connectTo(address)
	if err != nil {
		return "", err
	}
	defer c.raw.Close()
	conn := <-accepted
	defer conn.Close()
	header := make([]byte, 10)
	first := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(conn, header)
		first <- err
	}()
	refused := make(chan error, 1)
	go func() {
		_, err := c.Echo(context.Background(), &conformance.EchoRequest{Payload: make([]byte, frameMax)})
		refused <- err
	}()
	t.step("a request over 4 MiB towards a bare socket")
	var refusal error
	select {
	case refusal = <-refused:
	case <-first:
		return "", fmt.Errorf("a frame of %d bytes was begun; %s", binary.BigEndian.Uint32(header), remoteRefusal(t))
	}
	if refusal == nil {
		return "", errors.New("success")
	}
	// The next frame on the wire shows that nothing of the refused one went before it.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go c.Echo(ctx, &conformance.EchoRequest{})
	t.step("the frame after the refused one")
	if err := <-first; err != nil {
		return "", fmt.Errorf("the connection ended after the refusal: %v", err)
	}
	if length := binary.BigEndian.Uint32(header); length > frameMax {
		return "", fmt.Errorf("a frame of %d bytes was begun after %s", length, describe(refusal))
	}
	observed := fmt.Sprintf("%s; the next call has stream id %d", describe(refusal), binary.BigEndian.Uint32(header[4:]))
	t.step("the same with the server")
	real, err := t.connect()
	if err != nil {
		return "", err
	}
	if _, err := real.Echo(context.Background(), &conformance.EchoRequest{Payload: make([]byte, frameMax)}); err == nil {
		return "", errors.New("success")
	}
	return observed, alive(real, "after the refusal")
}

// remoteRefusal tells what the server makes of a frame over the limit.
func remoteRefusal(t *trial) string {
	c, err := t.connect()
	if err != nil {
		return err.Error()
	}
	_, err = within(patience, "Echo", func() (*conformance.EchoResponse, error) {
		return c.Echo(context.Background(), &conformance.EchoRequest{Payload: make([]byte, frameMax)})
	})
	verdict := "the server answered it with " + describe(err)
	if err := alive(c, "after that"); err != nil {
		return verdict + "; " + err.Error()
	}
	return verdict + ", and the connection lived on"
}

func oversizeReply(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	response, err := within(patience, "Echo", func() (*conformance.EchoResponse, error) {
		return c.Echo(context.Background(), &conformance.EchoRequest{ResponseSize: 5 << 20})
	})
	if err == nil {
		return "", fmt.Errorf("success, with %d bytes", len(response.Payload))
	}
	observed := describe(err)
	if codeOf(err) == noStatus {
		return "", errors.New(observed)
	}
	if err := alive(c, "after that"); err != nil {
		return "", fmt.Errorf("%s; then %w", observed, err)
	}
	return observed, nil
}

func pendingCallAtDisconnect(t *trial) (string, error) {
	address, accepted, cleanup, err := rawServer(t)
	if err != nil {
		return "", err
	}
	defer cleanup()
	c, err := t.connectTo(address)
	if err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() {
		_, err := c.Wait(context.Background(), &conformance.KeyRequest{Key: "never"})
		ended <- err
	}()
	conn := <-accepted
	t.step("the frame of the call")
	header := make([]byte, 10)
	if _, err := io.ReadFull(conn, header); err != nil {
		return "", err
	}
	if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(header))); err != nil {
		return "", err
	}
	conn.Close()
	select {
	case err := <-ended:
		if err == nil {
			return "", errors.New("success")
		}
		return describe(err), nil
	case <-time.After(patience):
		return "", fmt.Errorf("the call did not return within %v", patience)
	}
}

func manyConnections(t *trial) (string, error) {
	var wg sync.WaitGroup
	failures := make(chan error, 100)
	var connections []*connection
	for i := 0; i < 100; i++ {
		c, err := t.connect()
		if err != nil {
			return "", fmt.Errorf("connection %d: %w", i, err)
		}
		connections = append(connections, c)
	}
	for i, c := range connections {
		i, c := i, c
		wg.Add(1)
		go func() {
			defer wg.Done()
			for round := 0; round < 5; round++ {
				if err := echo(context.Background(), c, pattern(100, uint64(i*5+round))); err != nil {
					failures <- fmt.Errorf("connection %d: %w", i, err)
					return
				}
			}
		}()
	}
	wg.Wait()
	close(failures)
	return "", <-failures
}

func concurrentUnary(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	var wg sync.WaitGroup
	var done atomic.Int64
	failures := make(chan error, callers)
	for caller := 0; caller < callers; caller++ {
		caller := caller
		wg.Add(1)
		go func() {
			defer wg.Done()
			for call := 0; call < callsPerCaller; call++ {
				seed := uint64(caller*callsPerCaller + call)
				if err := echo(context.Background(), c, pattern(16+call%256, seed)); err != nil {
					failures <- err
					return
				}
				t.step("%d calls done", done.Add(1))
			}
		}()
	}
	wg.Wait()
	close(failures)
	return "", <-failures
}

func panicIsInternal(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	_, err = within(patience, "Panic", func() (*conformance.Empty, error) {
		return c.Panic(context.Background(), &conformance.Empty{})
	})
	observed := describe(err)
	verdict := wantCode(err, codes.Internal)
	if err := alive(c, "on this connection"); err != nil {
		observed += "; the connection did not live on"
		verdict = err
	}
	other, err := t.connect()
	if err == nil {
		err = alive(other, "on another connection")
	}
	if err != nil {
		observed += "; the server did not live on"
		verdict = err
	}
	if verdict != nil {
		return "", errors.New(observed)
	}
	return observed, nil
}
