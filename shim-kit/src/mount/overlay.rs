//! An overlay's lower folders: named shortly where there are many, and seen through other ids.

use std::path::{Path, PathBuf};

/// Data that is longer does not fit into the page that the kernel takes.
const MAX_DATA_LEN: usize = 4095;
const LOWER: &str = "lowerdir=";

/// The lower folders that an overlay's data names, and where in the data.
fn lower(data: &[String]) -> Option<(usize, Vec<&Path>)> {
    let place = data.iter().position(|word| word.starts_with(LOWER))?;
    Some((place, data[place][LOWER.len()..].split(':').map(Path::new).collect()))
}

/// The same data with other lower folders.
fn with_lower(mut data: Vec<String>, place: usize, folders: &[PathBuf]) -> Vec<String> {
    let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
    data[place] = format!("{LOWER}{}", folders.join(":"));
    data
}

/// The folder that all lower folders are in.
pub fn common_lower(data: &[String]) -> Option<PathBuf> {
    common_folder(&lower(data)?.1)
}

/// Names lower folders by another path of the folder that they have in common.
pub fn move_lower(data: Vec<String>, common: &Path, elsewhere: &Path) -> Vec<String> {
    let Some((place, folders)) = lower(&data) else { return data };
    let moved: Vec<_> = folders
        .iter()
        .map(|folder| {
            folder.strip_prefix(common).map_or((*folder).to_owned(), |rest| elsewhere.join(rest))
        })
        .collect();
    with_lower(data, place, &moved)
}

/// Shortens an overlay's data where it is too long for the kernel, as with many layers: lower
/// folders are named from the folder that they have in common, in which the caller has to be.
pub fn shorten(data: Vec<String>) -> (Option<PathBuf>, Vec<String>) {
    let length: usize = data.iter().map(|word| word.len() + 1).sum();
    if length <= MAX_DATA_LEN {
        return (None, data);
    }
    match common_lower(&data) {
        Some(common) => {
            let data = move_lower(data, &common, Path::new(""));
            (Some(common), data)
        }
        None => (None, data),
    }
}

/// The deepest folder above all of these.
fn common_folder(folders: &[&Path]) -> Option<PathBuf> {
    let mut common = folders.first()?.parent()?.to_owned();
    while !folders.iter().all(|folder| folder.starts_with(&common)) {
        common.pop();
    }
    (common.is_absolute() && common != Path::new("/")).then_some(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn many_layers_are_named_from_their_common_folder() {
        let few = words("lowerdir=/s/1/fs:/s/2/fs workdir=/s/3/work");
        assert_eq!(shorten(few.clone()), (None, few));

        let layers: Vec<String> = (0..100)
            .map(|layer| format!("/var/lib/containerd/snapshots/{layer}/fs-of-it"))
            .collect();
        let many = vec![format!("lowerdir={}", layers.join(":")), "index=off".to_owned()];
        let (folder, data) = shorten(many);
        assert_eq!(folder.unwrap(), Path::new("/var/lib/containerd/snapshots"));
        assert!(data[0].starts_with("lowerdir=0/fs-of-it:1/fs-of-it:"), "{}", data[0]);
        assert_eq!(data[1], "index=off");
    }

    #[test]
    fn layers_are_seen_through_another_folder() {
        let data = words("workdir=/w lowerdir=/s/1/fs:/s/2/fs");
        let common = common_lower(&data).unwrap();
        assert_eq!(common, Path::new("/s"));
        let moved = move_lower(data, &common, Path::new("/bundle/mapped"));
        assert_eq!(moved, words("workdir=/w lowerdir=/bundle/mapped/1/fs:/bundle/mapped/2/fs"));
        // A single layer is in its parent.
        assert_eq!(common_lower(&words("lowerdir=/s/1/fs")).unwrap(), Path::new("/s/1"));
    }
}
