//! A virtual machine: QEMU, the device that gives it vsock, and QEMU's monitor.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};
use ttrpc_tests::process::Process;

/// How long the programs may take to open their sockets.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often the device is started until it does.
const DEVICE_ATTEMPTS: usize = 3;

/// A virtual machine that runs until this is dropped.
pub(crate) struct Machine {
    qemu: Process,
    /// Stays behind QEMU: it has the Unix socket.
    _device: Process,
    monitor: Monitor,
    folder: TempDir,
}

/// What stops a guest.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pause {
    /// QEMU's monitor, which halts the processors and has the device give its rings back. What happens at that
    /// moment the device may miss: it stands still afterwards, at times until another connection comes, at times
    /// for ever.
    Monitor,
    /// QEMU's process is stopped. The device hears nothing of it.
    Process,
}

/// What a machine is made of.
pub(crate) struct Parts<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initrd: &'a Path,
    pub(crate) device: &'a Path,
    /// Where the machine's console goes.
    pub(crate) console: File,
}

impl Machine {
    pub(crate) fn start(parts: Parts<'_>) -> std::io::Result<Self> {
        let folder = tempdir()?;
        let path = |name: &str| folder.path().join(name);
        let (hybrid, device_socket, monitor) = (path("vm.sock"), path("vhost"), path("qmp"));
        let vm =
            format!("guest-cid=3,uds-path={},socket={}", hybrid.display(), device_socket.display());
        let device = start_device(parts.device, &vm, &device_socket)?;
        let arguments = "-M q35 -accel tcg -cpu qemu64 -m 256 -nodefaults -nographic -no-reboot \
             -object memory-backend-memfd,id=m,size=256M,share=on -numa node,memdev=m \
             -device vhost-user-vsock-pci,chardev=c -serial stdio";
        let mut qemu = Process::start(
            Command::new("qemu-system-x86_64")
                .args(arguments.split_whitespace())
                .args(["-chardev", &format!("socket,id=c,path={}", device_socket.display())])
                .args(["-qmp", &format!("unix:{},server=on,wait=off", monitor.display())])
                .arg("-kernel")
                .arg(parts.kernel)
                .arg("-initrd")
                .arg(parts.initrd)
                .args([
                    "-append",
                    "console=ttyS0 edd=off no_timer_check panic=-1 rdinit=/init quiet",
                ])
                .stdin(Stdio::null())
                .stdout(parts.console.try_clone()?)
                .stderr(parts.console),
        )?;
        wait_for(&monitor, &mut qemu)?;
        let monitor = Monitor::connect(&monitor)?;
        Ok(Machine { qemu, _device: device, monitor, folder })
    }

    /// The Unix socket by which the host reaches the machine.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder().join("vm.sock")
    }

    /// A folder that lives as long as the machine.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The guest stands still until [`Machine::resume`].
    pub(crate) fn stop(&mut self, by: Pause) -> std::io::Result<()> {
        match by {
            Pause::Monitor => self.monitor.execute("stop")?,
            Pause::Process => self.qemu.stop(),
        }
        Ok(())
    }

    /// Lets the guest go on that was stopped so.
    pub(crate) fn resume(&mut self, by: Pause) -> std::io::Result<()> {
        match by {
            Pause::Monitor => self.monitor.execute("cont")?,
            Pause::Process => self.qemu.resume(),
        }
        Ok(())
    }

    pub(crate) fn kill(&mut self) {
        self.qemu.kill();
    }
}

/// QEMU's monitor: a line of JSON for each command, and lines of JSON in return.
struct Monitor {
    lines: BufReader<UnixStream>,
}

impl Monitor {
    fn connect(path: &Path) -> std::io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut monitor = Monitor { lines: BufReader::new(stream) };
        monitor.read()?;
        monitor.execute("qmp_capabilities")?;
        Ok(monitor)
    }

    /// Returns when the command is done.
    fn execute(&mut self, command: &str) -> std::io::Result<()> {
        writeln!(self.lines.get_mut(), "{}", json!({ "execute": command }))?;
        loop {
            // Events come in between.
            let answer = self.read()?;
            if let Some(error) = answer.get("error") {
                return Err(std::io::Error::other(error.to_string()));
            }
            if answer.get("return").is_some() {
                return Ok(());
            }
        }
    }

    fn read(&mut self) -> std::io::Result<Value> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }
}

/// Starts the device. It does not always start: then it says why and ends, and is started again.
fn start_device(program: &Path, vm: &str, socket: &Path) -> std::io::Result<Process> {
    for attempt in 1.. {
        let mut device = Process::start(Command::new(program).args(["--vm", vm]))?;
        match wait_for(socket, &mut device) {
            Ok(()) => return Ok(device),
            Err(error) if attempt == DEVICE_ATTEMPTS => return Err(error),
            Err(error) => println!("the device did not start, and is started again: {error}"),
        }
    }
    unreachable!("the last attempt returns")
}

/// Waits until a program listens on its socket. It is not tried: the device takes one connection alone.
fn wait_for(path: &Path, program: &mut Process) -> std::io::Result<()> {
    let start = Instant::now();
    while !is_listening(path)? {
        if let Some(status) = program.try_wait()? {
            return Err(std::io::Error::other(format!("it ended with {status}")));
        }
        if start.elapsed() > PATIENCE {
            return Err(std::io::Error::other(format!("nobody listens on {}", path.display())));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Whether a socket is among those of the system with the flag for listening, `__SO_ACCEPTCON`.
fn is_listening(path: &Path) -> std::io::Result<bool> {
    let sockets = fs::read_to_string("/proc/net/unix")?;
    let is_it = |line: &str| {
        line.split(' ').nth(3) == Some("00010000")
            && Path::new(line.rsplit(' ').next().unwrap_or("")) == path
    };
    Ok(sockets.lines().any(is_it))
}
