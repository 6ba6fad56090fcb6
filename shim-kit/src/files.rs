//! Files that live as long as a command, and files that are there whole or not at all.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// A file's path; the file goes when this is dropped, also if it was written in part.
#[derive(Debug)]
pub struct Temporary(PathBuf);

impl Temporary {
    /// A path that another program may write to.
    pub fn new(path: PathBuf) -> Temporary {
        Temporary(path)
    }

    /// A file with this content, which its owner alone can read.
    ///
    /// # Errors
    /// Those of writing. Nothing is left then.
    pub fn with(path: PathBuf, bytes: &[u8]) -> io::Result<Temporary> {
        let file = Temporary(path);
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&file.0)?.write_all(bytes)?;
        Ok(file)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // It is not there if the program had nothing to write, or after it was renamed.
        let _ = fs::remove_file(&self.0);
    }
}

/// Writes a file that is there whole or not at all.
///
/// # Errors
/// Those of writing and renaming. The file is as it was then.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = Temporary::with(path.with_file_name(format!(".{name}")), bytes)?;
    fs::rename(draft.path(), path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "as it was").unwrap();
        // A link to a device that is always full.
        std::os::unix::fs::symlink("/dev/full", folder.path().join(".file")).unwrap();
        assert!(write_whole(&path, b"new").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(&path).unwrap(), "as it was");
        write_whole(&path, b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }
}
