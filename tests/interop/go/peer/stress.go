package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/containerd/ttrpc"

	"interop/peer/conformance"
)

// stressReport is the one line that the load client prints. AfterMillis is when the last call completed, or when the
// load came to a standstill.
type stressReport struct {
	CallsDone   int64 `json:"calls_done"`
	Pending     int64 `json:"pending"`
	Deadlocked  bool  `json:"deadlocked"`
	AfterMillis int64 `json:"after_millis"`
}

const deadlockedExit = 3

// runStress sends large requests and asks for large replies at once, on one connection. A peer that doesn't read while
// it writes comes to a standstill then, as soon as its peer does the same.
func runStress(args []string) (int, error) {
	flags := flag.NewFlagSet("stress", flag.ExitOnError)
	address := flags.String("connect", "", "address of the server, unix:///path")
	callers := flags.Int("callers", 16, "calls in flight")
	requestBytes := flags.Int("request-bytes", 256<<10, "payload of a request")
	responseBytes := flags.Uint("response-bytes", 256<<10, "payload of a reply")
	calls := flags.Int64("calls", 1000, "calls in all")
	stallSeconds := flags.Float64("stall-seconds", 5, "seconds without a completed call that count as a deadlock")
	sendBuffer := flags.Int("send-buffer", 0, "SO_SNDBUF of the socket, 0 for the system's")
	flags.Parse(args)

	conn, err := dial(*address)
	if err != nil {
		return 0, err
	}
	if *sendBuffer > 0 {
		if err := conn.SetWriteBuffer(*sendBuffer); err != nil {
			return 0, err
		}
	}
	service := conformance.NewConformanceClient(ttrpc.NewClient(conn))
	payload := make([]byte, *requestBytes)

	var begun, done, lastDone atomic.Int64
	start := time.Now()
	failed := make(chan error, *callers)
	finished := make(chan struct{}, *callers)
	for i := 0; i < *callers; i++ {
		go func() {
			for begun.Add(1) <= *calls {
				response, err := service.Echo(context.Background(), &conformance.EchoRequest{Payload: payload, ResponseSize: uint32(*responseBytes)})
				if err == nil && *responseBytes > 0 && len(response.Payload) != int(*responseBytes) {
					err = fmt.Errorf("a reply has %d bytes", len(response.Payload))
				}
				if err != nil {
					failed <- err
					return
				}
				done.Add(1)
				lastDone.Store(int64(time.Since(start)))
			}
			finished <- struct{}{}
		}()
	}
	stall := time.Duration(*stallSeconds * float64(time.Second))
	watch := time.NewTicker(50 * time.Millisecond)
	defer watch.Stop()
	for left := *callers; left > 0; {
		select {
		case err := <-failed:
			return 0, err
		case <-finished:
			left--
		case <-watch.C:
			if time.Since(start)-time.Duration(lastDone.Load()) >= stall {
				return deadlockedExit, report(&done, int64(left), true, &lastDone)
			}
		}
	}
	return 0, report(&done, 0, false, &lastDone)
}

func report(done *atomic.Int64, pending int64, deadlocked bool, last *atomic.Int64) error {
	return json.NewEncoder(os.Stdout).Encode(stressReport{
		CallsDone:   done.Load(),
		Pending:     pending,
		Deadlocked:  deadlocked,
		AfterMillis: time.Duration(last.Load()).Milliseconds(),
	})
}
