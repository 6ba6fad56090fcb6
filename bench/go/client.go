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
	"runtime"
	"sync"
	"time"

	"github.com/containerd/ttrpc"
)

func runClient(o options) {
	waitForSocket(o["path"])
	payload := make([]byte, o.number("size"))
	for i := range payload {
		payload[i] = byte(i)
	}
	if o["workload"] == "idle" {
		holdIdleConnections(o, payload)
	}
	var clients []*ttrpc.Client
	for i := 0; i < o.number("connections"); i++ {
		client := connect(o["path"])
		if !bytes.Equal(callEcho(client, payload), payload) {
			panic("an echo differs")
		}
		clients = append(clients, client)
	}
	calls := o.number("calls")
	switch o["workload"] {
	case "stream":
		callCount(clients[0], calls/10, len(payload))
		meter := startMeter(o)
		callCount(clients[0], calls, len(payload))
		meter.report(len(payload), calls, nil)
	case "ping-pong":
		pingPong(clients[0], calls/10, payload)
		meter := startMeter(o)
		meter.report(len(payload), calls, pingPong(clients[0], calls, payload))
	default:
		inFlight := o.number("in-flight")
		if warmUp := o.number("warm-up-millis"); warmUp > 0 {
			makeCalls(clients, inFlight, payload, 0, warmUp)
		}
		meter := startMeter(o)
		nanos := makeCalls(clients, inFlight, payload, calls, o.number("millis"))
		meter.report(len(payload), len(nanos), nanos)
	}
}

func waitForSocket(path string) {
	for i := 0; i < 500; i++ {
		if _, err := os.Stat(path); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(30 * time.Millisecond)
}

func connect(path string) *ttrpc.Client {
	connection, err := net.Dial("unix", path)
	check(err)
	return ttrpc.NewClient(connection)
}

func callEcho(client *ttrpc.Client, payload []byte) []byte {
	reply := new(message)
	check(client.Call(context.Background(), service, "Echo", &message{Value: payload}, reply))
	return reply.Value
}

func holdIdleConnections(o options, payload []byte) {
	var clients []*ttrpc.Client
	for i := 0; i < o.number("in-flight"); i++ {
		client := connect(o["path"])
		callEcho(client, payload)
		clients = append(clients, client)
	}
	fmt.Println("ready=1")
	io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(clients)
	os.Exit(0)
}

// makeCalls makes this many calls in total, or as many as fit into the time, from as many
// goroutines as calls are to be in flight. It returns how long each took.
func makeCalls(clients []*ttrpc.Client, inFlight int, payload []byte, calls, millis int) (nanos []int64) {
	deadline := time.Now().Add(time.Duration(millis) * time.Millisecond)
	var callers sync.WaitGroup
	var lock sync.Mutex
	for i := 0; i < inFlight; i++ {
		client := clients[i%len(clients)]
		callers.Add(1)
		go func() {
			defer callers.Done()
			mine := make([]int64, 0, 4096)
			for {
				copied := append([]byte(nil), payload...)
				start := time.Now()
				reply := callEcho(client, copied)
				end := time.Now()
				if len(reply) != len(payload) {
					panic("an echo differs")
				}
				mine = append(mine, end.Sub(start).Nanoseconds())
				if calls > 0 && len(mine)*inFlight >= calls || calls == 0 && end.After(deadline) {
					break
				}
			}
			lock.Lock()
			nanos = append(nanos, mine...)
			lock.Unlock()
		}()
	}
	callers.Wait()
	return nanos
}

func callCount(client *ttrpc.Client, messages, size int) {
	request := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, uint64(messages)), uint32(size))
	description := &ttrpc.StreamDesc{StreamingServer: true}
	stream, err := client.NewStream(context.Background(), description, service, "Count", &message{Value: request})
	check(err)
	received := 0
	for {
		reply := new(message)
		if err := stream.RecvMsg(reply); errors.Is(err, io.EOF) {
			break
		} else {
			check(err)
		}
		received++
	}
	if received != messages {
		panic("messages are missing")
	}
}

func pingPong(client *ttrpc.Client, rounds int, payload []byte) (nanos []int64) {
	description := &ttrpc.StreamDesc{StreamingClient: true, StreamingServer: true}
	stream, err := client.NewStream(context.Background(), description, service, "Bidi", nil)
	check(err)
	for i := 0; i < rounds; i++ {
		start := time.Now()
		check(stream.SendMsg(&message{Value: append([]byte(nil), payload...)}))
		check(stream.RecvMsg(new(message)))
		nanos = append(nanos, time.Since(start).Nanoseconds())
	}
	check(stream.CloseSend())
	return nanos
}
