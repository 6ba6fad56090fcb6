//! Splitting what exists into messages that ttrpc can carry.

use ttrpc::prost::Message;

use super::MESSAGE_BYTES;
use crate::{Container, PodSandbox, proto::SynchronizeRequest};

/// Bytes that a field in a message takes besides its value.
const FIELD_BYTES: usize = 6;

/// All pods, then all containers, in messages of which each but the last says that more follow.
pub(super) fn parts(pods: &[PodSandbox], containers: &[Container]) -> Vec<SynchronizeRequest> {
    let mut parts = vec![SynchronizeRequest::default()];
    let mut bytes = 0;
    let mut part_for = |len: usize, parts: &mut Vec<SynchronizeRequest>| {
        bytes += len + FIELD_BYTES;
        if bytes > MESSAGE_BYTES && bytes > len + FIELD_BYTES {
            bytes = len + FIELD_BYTES;
            parts.push(SynchronizeRequest::default());
        }
    };
    for pod in pods {
        part_for(pod.encoded_len(), &mut parts);
        parts.last_mut().expect("there is one").pods.push(pod.clone());
    }
    for container in containers {
        part_for(container.encoded_len(), &mut parts);
        parts.last_mut().expect("there is one").containers.push(container.clone());
    }
    let last = parts.len() - 1;
    parts[..last].iter_mut().for_each(|part| part.more = true);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exists_is_split_by_its_size_and_nothing_is_lost() {
        let large = |bytes: usize| Container { name: "n".repeat(bytes), ..Container::named("c") };
        let pods: Vec<_> = (0..1000).map(|at| PodSandbox::named(at.to_string())).collect();
        for (containers, most) in [
            (Vec::new(), 1),
            (vec![large(100); 10], 1),
            (vec![large(1000); 10_000], 3),
            (vec![large(3 << 20); 4], 5),
            (vec![large(5 << 20); 2], 3),
        ] {
            let parts = parts(&pods, &containers);
            assert!(parts.len() <= most, "{} parts", parts.len());
            let (last, others) = parts.split_last().expect("there is one");
            assert!(!last.more && others.iter().all(|part| part.more));
            let sent: Vec<_> = parts.iter().flat_map(|part| part.containers.clone()).collect();
            assert!(sent == containers);
            assert_eq!(parts.iter().map(|part| part.pods.len()).sum::<usize>(), 1000);
            assert!(
                others
                    .iter()
                    .all(|part| part.encoded_len() < MESSAGE_BYTES || part.containers.len() == 1)
            );
        }
    }
}
