//! Files that are mounted like disks.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::AsRawFd,
    path::PathBuf,
};

/// From the kernel's `linux/loop.h`.
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// How often another process may take a device between that it is found and that it is used.
const ATTEMPTS: u32 = 100;

/// The kernel's `struct loop_info64`.
#[repr(C)]
struct Info {
    numbers: [u64; 5],
    number: u32,
    encrypt: [u32; 2],
    flags: u32,
    names: [u8; 160],
    init: [u64; 2],
}

/// The kernel's `struct loop_config`.
#[repr(C)]
struct Config {
    descriptor: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// A device with a file behind it. The kernel gives it back when it is neither open nor mounted.
#[derive(Debug)]
pub struct Device {
    /// Its path, to be mounted.
    pub path: PathBuf,
    _open: File,
}

/// Puts a file behind a free device.
///
/// # Errors
/// If the kernel has no device, or the file cannot be opened.
#[allow(unsafe_code, reason = "loop devices are made by ioctl")]
pub fn attach(file: &str, is_read_only: bool) -> io::Result<Device> {
    let backing = OpenOptions::new().read(true).write(!is_read_only).open(file)?;
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    for _ in 0..ATTEMPTS {
        // SAFETY: the request takes and writes no memory.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = OpenOptions::new().read(true).write(!is_read_only).open(&path)?;
        let read_only = if is_read_only { LO_FLAGS_READ_ONLY } else { 0 };
        let config = Config {
            descriptor: backing.as_raw_fd().unsigned_abs(),
            block_size: 0,
            info: Info {
                numbers: [0; 5],
                number: 0,
                encrypt: [0; 2],
                flags: LO_FLAGS_AUTOCLEAR | read_only,
                names: [0; 160],
                init: [0; 2],
            },
            reserved: [0; 8],
        };
        // SAFETY: the request reads a structure of this layout, whose descriptor is open.
        if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
            return Ok(Device { path, _open: device });
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EBUSY) => {}
            error => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "other processes take every loop device"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<Info>(), size_of::<Config>()), (232, 304));
    }
}
