//go:build streams

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"interop/peer/conformance"
)

func init() {
	for name, run := range map[string]caseFunc{
		"server_streaming":          serverStreaming,
		"client_streaming":          clientStreaming,
		"ping_pong":                 pingPong,
		"empty_stream":              emptyStream,
		"empty_messages":            emptyMessages,
		"large_stream_messages":     largeStreamMessages,
		"stream_order":              streamOrder,
		"stream_fails_half_way":     streamFailsHalfWay,
		"metadata_in_stream":        metadataInStream,
		"timeout_in_stream_is_seen": timeoutInStreamIsSeen,
		"deadline_in_stream":        deadlineInStream,
		"concurrent_streams":        concurrentStreams,
		"unread_stream_on_server":   unreadStreamOnServer,
		"unread_stream_on_client":   unreadStreamOnClient,
	} {
		cases[name] = run
	}
}

// readChunks reads until the stream ends and checks that the chunks are numbered from first on.
func readChunks(stream conformance.Conformance_GenerateClient, first uint64, size int) (uint64, error) {
	for next := first; ; next++ {
		chunk, err := stream.Recv()
		if err != nil {
			return next, err
		}
		if chunk.Sequence != next || len(chunk.Payload) != size {
			return next, fmt.Errorf("chunk %d of %d bytes came as number %d of %d bytes", next, size, chunk.Sequence, len(chunk.Payload))
		}
	}
}

func cleanEnd(count, wanted uint64, err error) error {
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("after %d chunks: %s", count, describe(err))
	}
	if count != wanted {
		return fmt.Errorf("the stream ended after %d of %d chunks", count, wanted)
	}
	return nil
}

func serverStreaming(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	stream, err := c.Generate(context.Background(), &conformance.GenerateRequest{Count: 1000, Size: 100})
	if err != nil {
		return "", errors.New(describe(err))
	}
	t.step("reading")
	count, err := readChunks(stream, 0, 100)
	return "", cleanEnd(count, 1000, err)
}

func collectChunks(c *connection, count, size int) (*conformance.CollectResponse, error) {
	stream, err := c.Collect(context.Background())
	if err != nil {
		return nil, fmt.Errorf("Collect: %s", describe(err))
	}
	for i := 0; i < count; i++ {
		if err := stream.Send(&conformance.Chunk{Sequence: uint64(i), Payload: make([]byte, size)}); err != nil {
			return nil, fmt.Errorf("Send %d: %s", i, describe(err))
		}
	}
	response, err := stream.CloseAndRecv()
	if err != nil {
		return nil, fmt.Errorf("CloseAndRecv: %s", describe(err))
	}
	return response, nil
}

func checkCollected(response *conformance.CollectResponse, chunks, bytes uint64) error {
	if response.Chunks != chunks || response.Bytes != bytes || !response.InOrder {
		return fmt.Errorf("the handler saw %d chunks of %d, %d bytes of %d, in order: %v", response.Chunks, chunks, response.Bytes, bytes, response.InOrder)
	}
	return nil
}

func clientStreaming(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	response, err := collectChunks(c, 100, 100)
	if err != nil {
		return "", err
	}
	return "", checkCollected(response, 100, 10_000)
}

func streamOrder(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	response, err := collectChunks(c, 20_000, 8)
	if err != nil {
		return "", err
	}
	return "", checkCollected(response, 20_000, 160_000)
}

// exchange sends chunks one by one and reads each back, then closes and reads the end.
func exchange(c *connection, chunks []*conformance.Chunk) error {
	stream, err := c.Exchange(context.Background())
	if err != nil {
		return fmt.Errorf("Exchange: %s", describe(err))
	}
	for i, chunk := range chunks {
		if err := stream.Send(chunk); err != nil {
			return fmt.Errorf("Send %d: %s", i, describe(err))
		}
		back, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("Recv %d: %s", i, describe(err))
		}
		if back.Sequence != chunk.Sequence || !bytes.Equal(back.Payload, chunk.Payload) {
			return fmt.Errorf("chunk %d came back as another one", i)
		}
	}
	if err := stream.CloseSend(); err != nil {
		return fmt.Errorf("CloseSend: %s", describe(err))
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("instead of the end: %s", describe(err))
	}
	return nil
}

func numbered(count, size int, seed uint64) []*conformance.Chunk {
	var chunks []*conformance.Chunk
	for i := 0; i < count; i++ {
		chunks = append(chunks, &conformance.Chunk{Sequence: uint64(i), Payload: pattern(size, seed+uint64(i))})
	}
	return chunks
}

func pingPong(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	return "", exchange(c, numbered(100, 100, 3))
}

func largeStreamMessages(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	return "", exchange(c, numbered(8, frameMax-16, 4))
}

func emptyStream(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	t.step("Generate with no chunk")
	if err := generateAll(c, 0, 0); err != nil {
		return "", fmt.Errorf("Generate: %w", err)
	}
	t.step("Exchange with no chunk")
	if err := exchange(c, nil); err != nil {
		return "", err
	}
	t.step("Collect with no chunk")
	response, err := collectChunks(c, 0, 0)
	if err != nil {
		return "", err
	}
	return "", checkCollected(response, 0, 0)
}

func generateAll(c *connection, count uint64, size uint32) error {
	stream, err := c.Generate(context.Background(), &conformance.GenerateRequest{Count: count, Size: size})
	if err != nil {
		return errors.New(describe(err))
	}
	got, err := readChunks(stream, 0, int(size))
	return cleanEnd(got, count, err)
}

func emptyMessages(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	// The first chunk of a stream has number 0, so without a payload it encodes to nothing.
	t.step("Generate with one empty chunk")
	if err := generateAll(c, 1, 0); err != nil {
		return "", fmt.Errorf("Generate: %w", err)
	}
	t.step("Exchange with 10 empty chunks")
	if err := exchange(c, emptyChunks(10)); err != nil {
		return "", fmt.Errorf("Exchange: %w", err)
	}
	t.step("Collect with one empty chunk")
	response, err := collectChunks(c, 1, 0)
	if err != nil {
		return "", err
	}
	return "", checkCollected(response, 1, 0)
}

func emptyChunks(count int) []*conformance.Chunk {
	var chunks []*conformance.Chunk
	for i := 0; i < count; i++ {
		chunks = append(chunks, &conformance.Chunk{})
	}
	return chunks
}

// generateFailing opens a stream of which one observes how it ends.
func generateFailing(ctx context.Context, c *connection, count uint64) (uint64, error) {
	stream, err := c.Generate(ctx, &conformance.GenerateRequest{Count: count, FailCode: int32(codes.FailedPrecondition)})
	if err != nil {
		return 0, err
	}
	return readChunks(stream, 0, 0)
}

func streamFailsHalfWay(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	count, err := generateFailing(context.Background(), c, 10)
	observed := fmt.Sprintf("%d chunks, then %s", count, describe(err))
	if count != 10 || codeOf(err) != codes.FailedPrecondition {
		return "", errors.New(observed)
	}
	return observed, alive(c, "after that")
}

func metadataInStream(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	_, err = generateFailing(orderedMetadata(), c, 1)
	if err := wantCode(err, codes.FailedPrecondition); err != nil {
		return "", err
	}
	st, _ := status.FromError(err)
	if !strings.Contains(st.Message(), "tag=first; tag=second; tag=third") {
		return "", fmt.Errorf("the handler reported %q", st.Message())
	}
	return "", nil
}

func timeoutInStreamIsSeen(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), longTimeout)
	defer cancel()
	_, err = generateFailing(ctx, c, 1)
	if err := wantCode(err, codes.FailedPrecondition); err != nil {
		return "", err
	}
	st, _ := status.FromError(err)
	var nanos int64
	if _, err := fmt.Sscanf(st.Message(), "as asked; timeout_nano=%d", &nanos); err != nil || !plausibleTimeout(nanos) {
		return "", fmt.Errorf("the handler reported %q", st.Message())
	}
	return st.Message(), nil
}

func deadlineInStream(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), shortDeadline)
	defer cancel()
	began := time.Now()
	stream, err := c.Generate(ctx, &conformance.GenerateRequest{Count: 60, Size: 10, IntervalMicros: 50_000})
	if err != nil {
		return "", errors.New(describe(err))
	}
	count, err := readChunks(stream, 0, 10)
	if err := checkDeadline(err, time.Since(began)); err != nil {
		return "", fmt.Errorf("after %d chunks: %w", count, err)
	}
	return fmt.Sprintf("%d chunks, then %s", count, describe(err)), alive(c, "after the deadline")
}

func concurrentStreams(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	var wg sync.WaitGroup
	failures := make(chan error, 32)
	for i := 0; i < 32; i++ {
		i := i
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := exchange(c, numbered(100, 64, uint64(1000*i))); err != nil {
				failures <- fmt.Errorf("stream %d: %w", i, err)
			}
		}()
	}
	wg.Wait()
	close(failures)
	return "", <-failures
}

func unreadStreamOnServer(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	stream, err := c.Hold(context.Background())
	if err != nil {
		return "", errors.New(describe(err))
	}
	const chunks, size = 2000, 8192
	var sent atomic.Int64
	sender := make(chan error, 1)
	go func() {
		for i := 0; i < chunks; i++ {
			if err := stream.Send(&conformance.Chunk{Sequence: uint64(i), Payload: make([]byte, size)}); err != nil {
				sender <- err
				return
			}
			sent.Add(1)
		}
		sender <- nil
	}()
	t.step("sending what nobody reads")
	waitForStandstill(&sent, chunks)
	blocked := alive(c, "while the stream is unread")
	full := sent.Load()

	t.step("Release on another connection")
	other, err := t.connect()
	if err != nil {
		return "", err
	}
	ended := make(chan struct{})
	var collected *conformance.CollectResponse
	var end error
	go func() {
		defer close(ended)
		if end = <-sender; end == nil {
			collected, end = stream.CloseAndRecv()
		}
	}()
	if err := releaseUntil(other, "hold", ended, patience); err != nil {
		return "", fmt.Errorf("%d of %d chunks were sent; %w", full, chunks, err)
	}
	observed := fmt.Sprintf("%d of %d chunks were sent before Echo; the stream ended with %s", full, chunks, describe(end))
	if blocked != nil {
		return "", fmt.Errorf("%w; %s", blocked, observed)
	}
	if end == nil {
		// The order of the chunks is the matter of another case.
		collected.InOrder = true
		return observed, checkCollected(collected, chunks, chunks*size)
	}
	return observed, nil
}

// waitForStandstill returns when the count has reached its end or has not moved for half a second.
func waitForStandstill(count *atomic.Int64, end int64) {
	last, since := int64(-1), time.Now()
	for count.Load() < end && time.Since(since) < 500*time.Millisecond {
		if now := count.Load(); now != last {
			last, since = now, time.Now()
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func unreadStreamOnClient(t *trial) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	const chunks, size = 5000, 4096
	stream, err := c.Generate(context.Background(), &conformance.GenerateRequest{Count: chunks, Size: size})
	if err != nil {
		return "", errors.New(describe(err))
	}
	if _, err := stream.Recv(); err != nil {
		return "", fmt.Errorf("the first chunk: %s", describe(err))
	}
	// Nothing tells this side how much has arrived that nobody reads, so it is given the time to arrive.
	time.Sleep(500 * time.Millisecond)
	blocked := alive(c, "while the stream is unread")
	t.step("reading on")
	count, err := readChunks(stream, 1, size)
	observed := fmt.Sprintf("the stream ended after %d of %d chunks with %s", count, chunks, describe(err))
	if errors.Is(err, io.EOF) {
		observed = fmt.Sprintf("the stream ended after %d of %d chunks", count, chunks)
	}
	if blocked != nil {
		return "", fmt.Errorf("%w; %s", blocked, observed)
	}
	if errors.Is(err, io.EOF) && count != chunks {
		return "", errors.New(observed)
	}
	return observed, nil
}
