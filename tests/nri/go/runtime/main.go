// Containerd's own NRI runtime package with made-up pods, for the tests and figures of ttrpc-nri.
//
//	runtime PLUGINS CONTAINERS ROUNDS [SIZE]    launches what is in the folder PLUGINS, reports so many
//	                                            containers, passes so many creations through it, and prints
//	                                            their times and the plugins' memory. SIZE is the length
//	                                            of each container's one argument.
//	runtime serve FOLDER CONTAINERS LENGTH...   waits for an external plugin at FOLDER/nri.sock, reports so many
//	                                            containers to it, and passes a creation with an argument of each
//	                                            length through it, which must come back in the variable ECHO
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"
)

func main() {
	if os.Getenv("DEBUG") == "" {
		logrus.SetLevel(logrus.ErrorLevel)
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if os.Args[1] == "serve" {
		return serve(os.Args[2], os.Args[3], os.Args[4:])
	}
	var numbers [3]int
	for i, arg := range os.Args[2:] {
		number, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		numbers[i] = number
	}
	args := []string{strings.Repeat("x", numbers[2])}
	pod := &api.PodSandbox{Id: "p", Name: "p", Annotations: map[string]string{"pin.example/cpus": "0"}}
	sync := func(ctx context.Context, report adaptation.SyncCB) error {
		pods, containers := state(numbers[0], args)
		_, err := report(ctx, pods, containers)
		return err
	}
	runtime, err := adaptation.New("made-up", "v1", sync, update,
		adaptation.WithPluginPath(os.Args[1]), adaptation.WithPluginConfigPath(os.Args[1]),
		adaptation.WithSocketPath(filepath.Join(os.TempDir(), fmt.Sprintf("nri-%d.sock", os.Getpid()))),
		adaptation.WithDisabledExternalConnections())
	if err != nil {
		return err
	}
	if err := runtime.Start(); err != nil {
		return err
	}
	defer runtime.Stop()
	idle := memory()
	times := make([]time.Duration, numbers[1])
	for i := range times {
		request := &api.CreateContainerRequest{
			Pod: pod, Container: &api.Container{Id: "c", PodSandboxId: "p", Name: "c", Args: args},
		}
		begin := time.Now()
		reply, err := runtime.CreateContainer(context.Background(), request)
		times[i] = time.Since(begin)
		if err != nil {
			return err
		}
		if cpus := reply.GetAdjust().GetLinux().GetResources().GetCpu().GetCpus(); cpus != "0" {
			return fmt.Errorf("creation %d is without its adjustment", i)
		}
	}
	slices.Sort(times)
	var sum time.Duration
	for _, each := range times {
		sum += each
	}
	if len(times) > 0 {
		fmt.Printf("%d creations a second, median %v, 99 %% %v; ", int(float64(len(times))/sum.Seconds()),
			times[len(times)/2], times[len(times)*99/100])
	}
	fmt.Printf("memory when idle %s, then %s\n", idle, memory())
	return nil
}

// Nothing is updated.
func update(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	return nil, nil
}

// So many containers, each in a pod of its own.
func state(count int, args []string) ([]*api.PodSandbox, []*api.Container) {
	pods, containers := make([]*api.PodSandbox, count), make([]*api.Container, count)
	for i := range containers {
		id := fmt.Sprintf("%064d", i)
		containers[i] = &api.Container{Id: id, PodSandboxId: "p", Name: id, Args: args}
		pods[i] = &api.PodSandbox{Id: id, Name: id}
	}
	return pods, containers
}

func serve(folder, count string, lengths []string) error {
	number, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	// No plugin is to be dropped because the machine is busy.
	adaptation.SetPluginRegistrationTimeout(time.Minute)
	adaptation.SetPluginRequestTimeout(time.Minute)
	synchronized := make(chan error)
	sync := func(ctx context.Context, report adaptation.SyncCB) error {
		pods, containers := state(number, []string{strings.Repeat("x", 1000)})
		_, err := report(ctx, pods, containers)
		go func() { synchronized <- err }()
		return err
	}
	runtime, err := adaptation.New("made-up", "v1", sync, update,
		adaptation.WithPluginPath(filepath.Join(folder, "plugins")), adaptation.WithPluginConfigPath(folder),
		adaptation.WithSocketPath(filepath.Join(folder, "nri.sock")))
	if err != nil {
		return err
	}
	if err := runtime.Start(); err != nil {
		return err
	}
	defer runtime.Stop()
	// There are no launched plugins: the first synchronization is of none.
	for range 2 {
		if err := <-synchronized; err != nil {
			return err
		}
	}
	// It takes part when its synchronization is over, which this waits for.
	runtime.BlockPluginSync().Unblock()
	for _, text := range lengths {
		length, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		arg := strings.Repeat("y", length)
		request := &api.CreateContainerRequest{
			Pod: &api.PodSandbox{Id: "p"}, Container: &api.Container{Id: "c", PodSandboxId: "p", Args: []string{arg}},
		}
		reply, err := runtime.CreateContainer(context.Background(), request)
		if err != nil {
			return fmt.Errorf("%d bytes: %w", length, err)
		}
		env := reply.GetAdjust().GetEnv()
		if len(env) != 1 || env[0].Key != "ECHO" || env[0].Value != arg {
			return fmt.Errorf("%d bytes do not come back", length)
		}
	}
	return nil
}

// What this process's children have in memory: all that is resident, and their share of it.
func memory() string {
	children, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	for _, task := range must(filepath.Glob("/proc/self/task/*/children")) {
		more, _ := os.ReadFile(task)
		children = append(children, more...)
	}
	seen := map[string]bool{}
	var sizes []string
	for _, pid := range strings.Fields(string(children)) {
		rollup, err := os.ReadFile("/proc/" + pid + "/smaps_rollup")
		if err != nil || seen[pid] {
			continue
		}
		seen[pid] = true
		for line := range strings.Lines(string(rollup)) {
			for label, field := range map[string]string{"RSS": "Rss:", "Pss": "Pss:"} {
				if size, found := strings.CutPrefix(line, field); found {
					sizes = append(sizes, label+" "+strings.Join(strings.Fields(size), " "))
				}
			}
		}
	}
	return strings.Join(sizes, ", ")
}

func must[T any](value T, _ error) T { return value }
