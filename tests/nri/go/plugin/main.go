// The example `pinner` of ttrpc-nri, on containerd's stub in Go: to compare. A container's argument comes back in the variable ECHO if its
// pod has the annotation `echo`.
package main

import (
	"context"
	"io"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/sirupsen/logrus"
)

type pinner struct{}

func (pinner) CreateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if _, found := pod.Annotations["echo"]; found {
		adjustment := &api.ContainerAdjustment{}
		adjustment.AddEnv("ECHO", container.Args[0])
		return adjustment, nil, nil
	}
	cpus, found := pod.Annotations["pin.example/cpus"]
	if !found {
		return nil, nil, nil
	}
	adjustment := &api.ContainerAdjustment{}
	adjustment.AddEnv("PINNED_CPUS", cpus)
	adjustment.SetLinuxCPUSetCPUs(cpus)
	return adjustment, nil, nil
}

func main() {
	logrus.SetOutput(io.Discard)
	plugin, err := stub.New(pinner{})
	if err != nil {
		panic(err)
	}
	_ = plugin.Run(context.Background())
}
