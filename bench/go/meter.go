package main

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// meter holds what had been used up when the measurement started.
type meter struct {
	serverPid            int
	started              time.Time
	clientCPU, serverCPU time.Duration
	memory               runtime.MemStats
}

func startMeter(o options) *meter {
	m := &meter{serverPid: o.number("server-pid")}
	runtime.ReadMemStats(&m.memory)
	m.serverCPU, m.clientCPU, m.started = cpuOf(m.serverPid), ownCPU(), time.Now()
	return m
}

// report prints what was measured: name=value pairs on one line.
func (m *meter) report(size, units int, nanos []int64) {
	seconds := time.Since(m.started).Seconds()
	clientCPU, serverCPU := ownCPU()-m.clientCPU, cpuOf(m.serverPid)-m.serverCPU
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	slices.Sort(nanos)
	perUnit := func(amount float64) float64 { return amount / float64(units) }
	quantile := func(part float64) float64 {
		if len(nanos) == 0 {
			return 0
		}
		return float64(nanos[int(float64(len(nanos))*part)]) / 1e3
	}
	print := func(name string, value float64) { fmt.Printf("%s=%f ", name, value) }
	print("units", float64(units))
	print("seconds", seconds)
	print("per_second", float64(units)/seconds)
	print("megabytes_per_second", float64(units*size)/seconds/1e6)
	print("p50_us", quantile(0.5))
	print("p99_us", quantile(0.99))
	print("client_cpu_us", perUnit(clientCPU.Seconds()*1e6))
	print("server_cpu_us", perUnit(serverCPU.Seconds()*1e6))
	print("client_allocations", perUnit(float64(memory.Mallocs-m.memory.Mallocs)))
	print("client_allocated_bytes", perUnit(float64(memory.TotalAlloc-m.memory.TotalAlloc)))
	fmt.Println()
}

func ownCPU() time.Duration {
	return clock(unix.CLOCK_PROCESS_CPUTIME_ID)
}

// cpuOf gives the CPU time of another process, whose clock's number follows from its own.
func cpuOf(pid int) time.Duration {
	if pid == 0 {
		return 0
	}
	return clock(int32(^pid<<3 | 2))
}

func clock(id int32) time.Duration {
	var now unix.Timespec
	check(unix.ClockGettime(id, &now))
	return time.Duration(now.Nano())
}
