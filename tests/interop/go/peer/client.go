package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"interop/peer/conformance"
)

// The list of cases, their order and what they expect are shared with the peers in other languages.
//
//go:embed cases.json
var casesJSON []byte

type caseInfo struct {
	Name     string   `json:"name"`
	Needs    []string `json:"needs"`
	Expected string   `json:"expected"`
}

// A case returns what it saw, which is worth telling when it passed, too.
type caseFunc func(t *trial) (observed string, err error)

type result struct {
	Case     string `json:"case"`
	Result   string `json:"result"`
	Millis   int64  `json:"millis"`
	Expected string `json:"expected"`
	Observed string `json:"observed"`
}

// unsupported is the error of a case that this library has no way to express.
type unsupported string

func (u unsupported) Error() string { return string(u) }

func runClient(args []string) (int, error) {
	flags := flag.NewFlagSet("client", flag.ExitOnError)
	address := flags.String("connect", "", "address of the server, unix:///path")
	glob := flags.String("case", "*", "run the cases whose name matches this glob")
	list := flags.Bool("list", false, "print the names of the cases and leave")
	jsonPath := flags.String("json", "", "write a line of JSON for each case to this file")
	bound := flags.Float64("case-timeout", 20, "seconds after which a case counts as hung")
	flags.Parse(args)

	var infos, chosen []caseInfo
	if err := json.Unmarshal(casesJSON, &infos); err != nil {
		return 0, err
	}
	for _, info := range infos {
		matched, err := path.Match(*glob, info.Name)
		if err != nil {
			return 0, err
		}
		if matched {
			chosen = append(chosen, info)
		}
	}
	if *list {
		for _, info := range chosen {
			fmt.Println(info.Name)
		}
		return 0, nil
	}
	if len(chosen) == 0 {
		return 0, fmt.Errorf("no case matches %q", *glob)
	}
	var out *os.File
	if *jsonPath != "" {
		var err error
		if out, err = os.Create(*jsonPath); err != nil {
			return 0, err
		}
		defer out.Close()
	}
	failed := 0
	for _, info := range chosen {
		r := runCase(info, *address, time.Duration(*bound*float64(time.Second)))
		if r.Result == "fail" {
			failed++
		}
		fmt.Printf("%-30s %-12s %7d ms  %s\n", r.Case, r.Result, r.Millis, r.Observed)
		if out != nil {
			if err := json.NewEncoder(out).Encode(r); err != nil {
				return 0, err
			}
		}
	}
	if failed > 0 {
		return 1, nil
	}
	return 0, nil
}

// runCase runs one case under a watchdog. A case that hangs is left behind, since a goroutine that is blocked inside a
// library can't be ended.
func runCase(info caseInfo, address string, bound time.Duration) result {
	r := result{Case: info.Name, Expected: info.Expected}
	run, ok := cases[info.Name]
	if !ok {
		r.Result, r.Observed = "unsupported", "this version speaks unary calls only"
		if speaksStreams || len(info.Needs) == 0 {
			r.Result, r.Observed = "fail", "this client lacks the case"
		}
		return r
	}
	t := &trial{address: address}
	type outcome struct {
		observed string
		err      error
	}
	ended := make(chan outcome, 1)
	began := time.Now()
	go func() {
		observed, err := run(t)
		ended <- outcome{observed, err}
	}()
	select {
	case o := <-ended:
		var reason unsupported
		switch {
		case o.err == nil:
			r.Result, r.Observed = "pass", o.observed
		case errors.As(o.err, &reason):
			r.Result, r.Observed = "unsupported", string(reason)
		default:
			r.Result, r.Observed = "fail", o.err.Error()
		}
		t.close()
	case <-time.After(bound):
		r.Result, r.Observed = "fail", fmt.Sprintf("hung: no end after %v, at: %s", bound, t.lastStep())
	}
	r.Millis = time.Since(began).Milliseconds()
	return r
}

// trial is one run of one case.
type trial struct {
	address string

	mu     sync.Mutex
	at     string
	opened []*ttrpc.Client
}

func (t *trial) step(format string, args ...interface{}) {
	t.mu.Lock()
	t.at = fmt.Sprintf(format, args...)
	t.mu.Unlock()
}

func (t *trial) lastStep() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at
}

type connection struct {
	client
	raw *ttrpc.Client
}

func (t *trial) connect() (*connection, error) { return t.connectTo(t.address) }

func (t *trial) connectTo(address string) (*connection, error) {
	conn, err := dial(address)
	if err != nil {
		return nil, err
	}
	raw := ttrpc.NewClient(conn)
	t.mu.Lock()
	t.opened = append(t.opened, raw)
	t.mu.Unlock()
	return &connection{client: conformance.NewConformanceClient(raw), raw: raw}, nil
}

func (t *trial) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, raw := range t.opened {
		raw.Close()
	}
}

// noStatus is the code of an error that is neither a status nor one of context.
const noStatus = codes.Code(1 << 20)

// codeOf reads the code of an error. The library returns the errors of context as they are, and their codes are clear.
func codeOf(err error) codes.Code {
	switch {
	case err == nil:
		return codes.OK
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	}
	if st, ok := status.FromError(err); ok {
		return st.Code()
	}
	return noStatus
}

func describe(err error) string {
	if err == nil {
		return "success"
	}
	code := codeOf(err)
	if code == noStatus {
		return fmt.Sprintf("an error without a status: %v", err)
	}
	if st, ok := status.FromError(err); ok {
		return fmt.Sprintf("status %d %q", code, st.Message())
	}
	return fmt.Sprintf("status %d (local: %v)", code, err)
}

func wantCode(err error, code codes.Code) error {
	if codeOf(err) != code {
		return fmt.Errorf("wanted status %d, got %s", code, describe(err))
	}
	return nil
}

// within bounds one step of a case, so that what is reported names the step and not just the case.
func within[T any](bound time.Duration, what string, f func() (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	ended := make(chan outcome, 1)
	go func() {
		value, err := f()
		ended <- outcome{value, err}
	}()
	select {
	case o := <-ended:
		return o.value, o.err
	case <-time.After(bound):
		var none T
		return none, fmt.Errorf("%s: no answer within %v", what, bound)
	}
}

// alive makes a call to show that a connection still works.
func alive(c *connection, when string) error {
	payload := []byte("still here " + when)
	response, err := within(patience, "Echo "+when, func() (*conformance.EchoResponse, error) {
		return c.Echo(context.Background(), &conformance.EchoRequest{Payload: payload})
	})
	if err != nil {
		if strings.Contains(err.Error(), when) {
			return err
		}
		return fmt.Errorf("Echo %s: %s", when, describe(err))
	}
	if string(response.Payload) != string(payload) {
		return fmt.Errorf("Echo %s brought another payload", when)
	}
	return nil
}
