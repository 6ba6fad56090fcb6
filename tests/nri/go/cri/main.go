// A client of containerd's CRI, and the program in its image: for tests/nri/containerd.
//
//	cri image FILE                       writes an image with this program, nri.test/cri:1, and an empty one, nri.test/empty:1
//	cri run SOCKET LOGS NAME [K=V]...    runs a pod with these annotations: one container that says what it sees, is updated, stopped and removed
//	cri keep SOCKET LOGS NAME            runs a pod whose container goes on, leaves it, and prints the container's id
//	cri many SOCKET LOGS PODS N          runs pods with N containers in all, of the empty image, which are created and not started
//	cri clean SOCKET                     removes all pods
//	cri pause                            does nothing (in the pod)
//	cri show                             says what it sees, and goes on (in the container)
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	image = "nri.test/cri:1"
	empty = "nri.test/empty:1"
)

// The last line of what a container sees.
const shown = "that is all"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch args[0] {
	case "image":
		return writeImage(args[1])
	case "pause", "show":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
		if args[0] == "show" {
			if err := show(); err != nil {
				return err
			}
		}
		<-stop
		return nil
	}
	conn, err := grpc.NewClient("unix://"+args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := cri.NewRuntimeServiceClient(conn)
	if args[0] == "many" {
		return runMany(context.Background(), client, args[2], args[3], args[4])
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch args[0] {
	case "run":
		return runPod(ctx, client, args[2], args[3], args[4:])
	case "keep":
		_, container, err := startPod(ctx, client, args[2], args[3], nil, "pause")
		if err == nil {
			fmt.Println(container)
		}
		return err
	case "clean":
		return clean(ctx, client)
	}
	return fmt.Errorf("no such mode: %s", args[0])
}

func show() error {
	for _, pair := range os.Environ() {
		fmt.Println("env", pair)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "Cpus_allowed_list:") {
			fmt.Print(line)
		}
	}
	entries, err := os.ReadDir("/dev")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		fmt.Println("dev", entry.Name())
	}
	fmt.Println(shown)
	return nil
}

func startPod(ctx context.Context, client cri.RuntimeServiceClient, logs, name string, annotations map[string]string, arg string) (string, string, error) {
	sandbox, pod, err := runSandbox(ctx, client, logs, name, annotations)
	if err != nil {
		return "", "", err
	}
	container, err := createContainer(ctx, client, sandbox, pod, image, "c", arg, false)
	if err != nil {
		return pod, "", err
	}
	_, err = client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: container})
	return pod, container, err
}

func runSandbox(ctx context.Context, client cri.RuntimeServiceClient, logs, name string, annotations map[string]string) (*cri.PodSandboxConfig, string, error) {
	sandbox := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Uid: name, Namespace: "test"},
		LogDirectory: logs,
		Annotations:  annotations,
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE},
		}},
	}
	pod, err := client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		return nil, "", fmt.Errorf("running the pod: %w", err)
	}
	return sandbox, pod.PodSandboxId, nil
}

func createContainer(ctx context.Context, client cri.RuntimeServiceClient, sandbox *cri.PodSandboxConfig, pod, image, name, arg string, tty bool) (string, error) {
	created, err := client.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: pod,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: name},
			Image:    &cri.ImageSpec{Image: image},
			Command:  []string{"/cri", arg},
			LogPath:  sandbox.Metadata.Name + ".log",
			Tty:      tty,
			Linux:    &cri.LinuxContainerConfig{Resources: &cri.LinuxContainerResources{}},
		},
		SandboxConfig: sandbox,
	})
	if err != nil {
		return "", fmt.Errorf("creating the container: %w", err)
	}
	return created.ContainerId, nil
}

// The containers are created by as many callers as there are pods, each in its own.
func runMany(ctx context.Context, client cri.RuntimeServiceClient, logs, pods, containers string) error {
	podCount, err := strconv.Atoi(pods)
	if err != nil {
		return err
	}
	count, err := strconv.Atoi(containers)
	if err != nil {
		return err
	}
	results := make(chan error)
	for at := range podCount {
		go func() {
			sandbox, pod, err := runSandbox(ctx, client, logs, fmt.Sprintf("many%d", at), nil)
			for number := at; err == nil && number < count; number += podCount {
				// With a terminal containerd has one descriptor open for each container, not two.
				_, err = createContainer(ctx, client, sandbox, pod, empty, fmt.Sprintf("c%d", number), "pause", true)
			}
			results <- err
		}()
	}
	var errs []error
	for range podCount {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}

func runPod(ctx context.Context, client cri.RuntimeServiceClient, logs, name string, pairs []string) error {
	annotations := map[string]string{}
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		annotations[key] = value
	}
	pod, container, err := startPod(ctx, client, logs, name, annotations, "show")
	if pod != "" {
		defer func() {
			client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod})
			client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod})
		}()
	}
	if err != nil {
		return err
	}
	// It has not ended: it is stopped below.
	var log string
	for !strings.Contains(log, shown) {
		if ctx.Err() != nil {
			return fmt.Errorf("the container says nothing: %w", ctx.Err())
		}
		time.Sleep(10 * time.Millisecond)
		content, err := os.ReadFile(filepath.Join(logs, name+".log"))
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		log = string(content)
	}
	for line := range strings.Lines(log) {
		// What is before the third space is the log's.
		if parts := strings.SplitN(line, " ", 4); len(parts) == 4 {
			fmt.Print(parts[3])
		}
	}
	resources := &cri.LinuxContainerResources{CpuShares: 512}
	if _, err := client.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{ContainerId: container, Linux: resources}); err != nil {
		return fmt.Errorf("updating the container: %w", err)
	}
	fmt.Println("updated")
	if _, err := client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: container, Timeout: 10}); err != nil {
		return fmt.Errorf("stopping the container: %w", err)
	}
	fmt.Println("stopped")
	if _, err := client.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: container}); err != nil {
		return fmt.Errorf("removing the container: %w", err)
	}
	fmt.Println("removed")
	return nil
}

func clean(ctx context.Context, client cri.RuntimeServiceClient) error {
	pods, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	for _, pod := range pods.Items {
		if _, err := client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod.Id}); err != nil {
			return err
		}
		if _, err := client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod.Id}); err != nil {
			return err
		}
	}
	return nil
}

func writeImage(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	archive := tar.NewWriter(file)
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	var manifests []any
	for name, content := range map[string][]byte{image: program, empty: nil} {
		manifest, err := writeManifest(archive, name, content)
		if err != nil {
			return err
		}
		manifests = append(manifests, manifest)
	}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": manifests})
	if err != nil {
		return err
	}
	if err := add(archive, "index.json", index, 0o644); err != nil {
		return err
	}
	if err := add(archive, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644); err != nil {
		return err
	}
	return archive.Close()
}

// An image of one layer with this program, or nothing in its place.
func writeManifest(archive *tar.Writer, name string, program []byte) (map[string]any, error) {
	var layer bytes.Buffer
	files := tar.NewWriter(&layer)
	if err := add(files, "cri", program, 0o755); err != nil {
		return nil, err
	}
	files.Close()
	blob := func(content []byte) (map[string]any, error) {
		sum := fmt.Sprintf("%x", sha256.Sum256(content))
		return map[string]any{"digest": "sha256:" + sum, "size": len(content)}, add(archive, "blobs/sha256/"+sum, content, 0o644)
	}
	blobOf := func(value any, kind string) (map[string]any, error) {
		content, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		described, err := blob(content)
		described["mediaType"] = kind
		return described, err
	}
	described, err := blob(layer.Bytes())
	if err != nil {
		return nil, err
	}
	described["mediaType"] = "application/vnd.oci.image.layer.v1.tar"
	config, err := blobOf(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/cri", "pause"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{described["digest"]}},
	}, "application/vnd.oci.image.config.v1+json")
	if err != nil {
		return nil, err
	}
	manifest, err := blobOf(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []any{described},
	}, "application/vnd.oci.image.manifest.v1+json")
	if err != nil {
		return nil, err
	}
	manifest["annotations"] = map[string]string{"io.containerd.image.name": name}
	return manifest, nil
}

func add(archive *tar.Writer, name string, content []byte, mode int64) error {
	header := &tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Typeflag: tar.TypeReg}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(archive, bytes.NewReader(content))
	return err
}
