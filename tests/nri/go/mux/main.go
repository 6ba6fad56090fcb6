// A peer behind Go's NRI multiplexer, on its standard input: for the tests of ttrpc-nri.
//
//	mux frames    sends each ttrpc frame back that arrives on either connection, read as containerd/ttrpc reads
//	mux unread    sends 300 messages on connection 1, then one on connection 2, and reads none before
//	              it has got one on connection 2
//	mux calls     serves echo on connection 1, and calls it on connection 2 with every length at once
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"

	nrinet "github.com/containerd/nri/pkg/net"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const headerLen = 10

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(mode string) error {
	trunk, err := nrinet.NewFdConn(0)
	if err != nil {
		return err
	}
	// What arrives for a connection that is not open yet would be dropped.
	mux := multiplex.Multiplex(trunk, multiplex.WithBlockedRead())
	one, err := mux.Open(multiplex.PluginServiceConn)
	if err != nil {
		return err
	}
	two, err := mux.Open(multiplex.RuntimeServiceConn)
	if err != nil {
		return err
	}
	mux.Unblock()
	switch mode {
	case "frames":
		return both(one, two, echoFrames)
	case "unread":
		return unread(one, two)
	case "calls":
		return calls(one, two)
	}
	return errors.New("no such mode: " + mode)
}

func both(one, two net.Conn, do func(net.Conn) error) error {
	done := make(chan error, 2)
	for _, conn := range []net.Conn{one, two} {
		go func() { done <- do(conn) }()
	}
	return errors.Join(<-done, <-done)
}

func readFrame(from *bufio.Reader) ([]byte, error) {
	var header [headerLen]byte
	if _, err := io.ReadFull(from, header[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, headerLen+int(binary.BigEndian.Uint32(header[:])))
	copy(frame, header[:])
	_, err := io.ReadFull(from, frame[headerLen:])
	return frame, err
}

func echoFrames(conn net.Conn) error {
	reader, writer := bufio.NewReader(conn), bufio.NewWriter(conn)
	for {
		frame, err := readFrame(reader)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading: %w", err)
		}
		for _, part := range [][]byte{frame[:headerLen], frame[headerLen:]} {
			if _, err := writer.Write(part); err != nil {
				return fmt.Errorf("writing: %w", err)
			}
		}
		if err := writer.Flush(); err != nil {
			return fmt.Errorf("writing: %w", err)
		}
	}
}

func message(size int) []byte {
	frame := make([]byte, headerLen+size)
	binary.BigEndian.PutUint32(frame, uint32(size))
	frame[7], frame[8] = 1, 1
	return frame
}

func unread(one, two net.Conn) error {
	for range 300 {
		if _, err := one.Write(message(1000)); err != nil {
			return err
		}
	}
	if _, err := two.Write(message(3)); err != nil {
		return err
	}
	if _, err := readFrame(bufio.NewReader(two)); err != nil {
		return fmt.Errorf("on connection 2: %w", err)
	}
	reader := bufio.NewReader(one)
	for range 300 {
		if _, err := readFrame(reader); err != nil {
			return fmt.Errorf("on connection 1: %w", err)
		}
	}
	_, err := two.Write(message(4))
	return err
}

func calls(one, two net.Conn) error {
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	server.Register("echo", map[string]ttrpc.Method{
		"Echo": func(_ context.Context, unmarshal func(interface{}) error) (interface{}, error) {
			var request wrapperspb.BytesValue
			return &request, unmarshal(&request)
		},
	})
	go server.Serve(context.Background(), nrinet.NewConnListener(one))
	client := ttrpc.NewClient(two)
	var all sync.WaitGroup
	failed := make(chan error, 100)
	for _, arg := range os.Args[2:] {
		size, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		all.Add(1)
		go func() {
			defer all.Done()
			request := &wrapperspb.BytesValue{Value: bytes.Repeat([]byte{7}, size)}
			var reply wrapperspb.BytesValue
			if err := client.Call(context.Background(), "echo", "Echo", request, &reply); err != nil {
				failed <- fmt.Errorf("%d bytes: %w", size, err)
			} else if !bytes.Equal(request.Value, reply.Value) {
				failed <- fmt.Errorf("%d bytes come back otherwise", size)
			}
		}()
	}
	all.Wait()
	close(failed)
	if err := <-failed; err != nil {
		return err
	}
	// This returns when the other side's calls are done, too.
	var done wrapperspb.BytesValue
	return client.Call(context.Background(), "echo", "Done", &done, &done)
}
