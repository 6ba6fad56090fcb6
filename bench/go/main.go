// Server or client with containerd's ttrpc, with the options and the output of the peer in Rust.
//
// Its messages are google.protobuf.BytesValue, which has the bytes of the others' EchoMsg on the
// wire and needs no code generator.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const service = "bench.Bench"

type message = wrapperspb.BytesValue

func main() {
	options := parseOptions()
	runtime.GOMAXPROCS(2)
	if options["runtime"] == "current-thread" {
		runtime.GOMAXPROCS(1)
	}
	if os.Args[1] == "server" {
		go exitWithStandardInput()
		serve(options["path"])
		return
	}
	runClient(options)
}

func parseOptions() options {
	parsed := options{
		"in-flight": "1", "connections": "1", "size": "64", "millis": "1000",
		"warm-up-millis": "200", "calls": "0", "server-pid": "0", "workload": "unary",
	}
	for i := 2; i+1 < len(os.Args); i += 2 {
		parsed[strings.TrimPrefix(os.Args[i], "--")] = os.Args[i+1]
	}
	return parsed
}

type options map[string]string

func (o options) number(name string) int {
	value, err := strconv.Atoi(o[name])
	check(err)
	return value
}

// check panics: a benchmark that went on after an error would measure something else.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

func serve(path string) {
	server, err := ttrpc.NewServer()
	check(err)
	server.RegisterService(service, &ttrpc.ServiceDesc{
		Methods: map[string]ttrpc.Method{"Echo": echo},
		Streams: map[string]ttrpc.Stream{
			"Count": {Handler: count, StreamingServer: true},
			"Bidi":  {Handler: bidi, StreamingClient: true, StreamingServer: true},
		},
	})
	listener, err := net.Listen("unix", path)
	check(err)
	check(server.Serve(context.Background(), listener))
}

func echo(_ context.Context, unmarshal func(interface{}) error) (interface{}, error) {
	request := new(message)
	return request, unmarshal(request)
}

func count(_ context.Context, stream ttrpc.StreamServer) (interface{}, error) {
	request := new(message)
	if err := stream.RecvMsg(request); err != nil {
		return nil, err
	}
	messages, size := binary.BigEndian.Uint64(request.Value), binary.BigEndian.Uint32(request.Value[8:])
	for i := uint64(0); i < messages; i++ {
		payload := make([]byte, size)
		if err := stream.SendMsg(&message{Value: payload}); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func bidi(_ context.Context, stream ttrpc.StreamServer) (interface{}, error) {
	for {
		request := new(message)
		if err := stream.RecvMsg(request); errors.Is(err, io.EOF) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		if err := stream.SendMsg(request); err != nil {
			return nil, err
		}
	}
}

// exitWithStandardInput ends the server when its standard input is closed.
func exitWithStandardInput() {
	io.Copy(io.Discard, os.Stdin)
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	fmt.Printf("server_allocations=%d server_allocated_bytes=%d\n", stats.Mallocs, stats.TotalAlloc)
	os.Exit(0)
}
