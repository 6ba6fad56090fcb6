// Command peer is a conformance server, a conformance client and a load client on top of containerd/ttrpc.
//
// The same sources are built against several versions of the library. What differs between them is behind two build
// tags: `gogo` for the versions whose bindings come from gogo/protobuf and that speak unary calls only, and `streams`
// for the versions with streams.
package main

import (
	"fmt"
	"net"
	"os"
	"strings"
)

const usage = `usage:
  peer server --listen unix:///path [--executed FILE]
  peer client --connect unix:///path [--case GLOB] [--list] [--json FILE] [--case-timeout SECONDS]
  peer stress --connect unix:///path [--callers N] [--request-bytes N] [--response-bytes N] [--calls N]
              [--stall-seconds S] [--send-buffer BYTES]
`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	var code int
	var err error
	switch os.Args[1] {
	case "server":
		err = runServer(os.Args[2:])
	case "client":
		code, err = runClient(os.Args[2:])
	case "stress":
		code, err = runStress(os.Args[2:])
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// unixPath takes the path out of an address; a leading @ stands for the abstract namespace, for Go as well.
func unixPath(address string) (string, error) {
	path, ok := strings.CutPrefix(address, "unix://")
	if !ok || path == "" {
		return "", fmt.Errorf("address %q does not start with unix://", address)
	}
	return path, nil
}

func dial(address string) (*net.UnixConn, error) {
	path, err := unixPath(address)
	if err != nil {
		return nil, err
	}
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
}
