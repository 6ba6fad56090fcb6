//! Versions of NRI: which events a runtime knows.

use crate::EventMask;

/// The version of NRI that this crate speaks.
pub const NRI_VERSION: &str = "v0.12.5";

/// The events that a runtime knows, by what it says in Configure. A runtime refuses a plugin that asks for others.
///
/// One that names no version of NRI (before v0.12) or one that is not known (a development build) is known by its own name and version. Of
/// an unknown runtime, one that fills the field at all has v0.12 or newer, and one that leaves it empty is taken for old.
pub(crate) fn known_events(nri: &str, runtime: &str, version: &str) -> EventMask {
    let is_new = match (parse(nri), runtime, parse(version)) {
        (Some(nri), ..) => nri >= (0, 10),
        (None, "containerd", Some(version)) => version >= (2, 2),
        (None, "cri-o", Some(version)) => version >= (1, 34),
        _ => !nri.is_empty(),
    };
    if is_new { EventMask::ALL } else { EventMask::OLD }
}

/// The first two numbers of `v1.2.3-more`. `None` for what is no version, and for `0.0.0-unknown`, which stands for one that is not known.
fn parse(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '+']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?)).filter(|version| *version != (0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_runtimes_are_asked_for_old_events() {
        for (nri, runtime, version) in [
            ("v0.9.1-0.20250219030224-e597e7849f24", "cri-o", "1.33.0"),
            ("", "containerd", "v1.7.30"),
            ("unknown", "containerd", "2.1.6"),
            ("", "cri-o", "v1.33.8"),
            ("", "other", "9.9.9"),
            ("", "containerd", ""),
        ] {
            assert_eq!(
                known_events(nri, runtime, version),
                EventMask::OLD,
                "{nri} {runtime} {version}"
            );
        }
        for (nri, runtime, version) in [
            ("v0.10.0", "containerd", "2.2.0"),
            ("v0.12.3", "other", ""),
            ("", "containerd", "v2.2.0-rc.1"),
            ("(devel)", "containerd", "2.4.2"),
            ("0.0.0-unknown", "other", "0.1.2"),
            ("0.0.0-unknown", "containerd", "2.4.2"),
            ("", "cri-o", "1.35.0"),
        ] {
            assert_eq!(
                known_events(nri, runtime, version),
                EventMask::ALL,
                "{nri} {runtime} {version}"
            );
        }
    }
}
