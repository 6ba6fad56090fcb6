//! Fields that have entries with keys, some of which may be marked for removal.

use std::collections::{HashMap, HashSet};

use ttrpc::Status;

use crate::{mark_for_removal, marked_for_removal, proto::Field, runtime::owners::Claims};

/// Merges entries of a list that have keys. One that is marked for removal takes the entry from the plugin that has set it, and the mark goes
/// on to the runtime, in front of what is set anew.
pub(super) fn merge_list<T>(
    claims: &mut Claims<'_>,
    field: Field,
    new: Vec<T>,
    reply: &mut Vec<T>,
    key: impl Fn(&T) -> &str,
) -> Result<(), Status> {
    let (removals, additions): (Vec<T>, Vec<T>) =
        new.into_iter().partition(|entry| marked_for_removal(key(entry)).is_some());
    let mut removed = HashSet::new();
    // The last mark of each.
    let mut marks: Vec<T> = removals
        .into_iter()
        .rev()
        .filter(|mark| removed.insert(unmarked(key(mark)).to_owned()))
        .collect();
    reply.retain(|entry| {
        let is_removed = removed.contains(unmarked(key(entry)));
        if is_removed && marked_for_removal(key(entry)).is_none() {
            claims.clear_entry(field, key(entry));
        }
        !is_removed
    });
    marks.append(reply);
    *reply = marks;
    for addition in additions {
        claims.claim_entry(field, key(&addition))?;
        reply.push(addition);
    }
    Ok(())
}

/// A key without its mark for removal, if it has one.
pub(super) fn unmarked(key: &str) -> &str {
    marked_for_removal(key).unwrap_or(key)
}

/// Changes what later plugins see of the container, by what is merged so far.
pub(super) fn see<T, C>(
    reply: &[T],
    container: &mut Vec<C>,
    key: impl Fn(&T) -> &str,
    key_there: impl Fn(&C) -> &str,
    convert: impl Fn(&T) -> C,
) {
    let changed: HashSet<&str> = reply.iter().map(|entry| unmarked(key(entry))).collect();
    container.retain(|there| !changed.contains(key_there(there)));
    let set = reply.iter().filter(|entry| marked_for_removal(key(entry)).is_none());
    container.extend(set.map(convert));
}

/// Merges a map as `merge_list` does a list.
pub(super) fn merge_map<V: Clone + Default>(
    claims: &mut Claims<'_>,
    field: Field,
    new: HashMap<String, V>,
    reply: &mut HashMap<String, V>,
    container: &mut HashMap<String, V>,
) -> Result<(), Status> {
    for removed in new.keys().filter_map(|key| marked_for_removal(key)) {
        container.remove(removed);
        if reply.remove(removed).is_some() {
            claims.clear_entry(field, removed);
        }
        reply.insert(mark_for_removal(removed), V::default());
    }
    for (key, value) in new {
        if marked_for_removal(&key).is_none() {
            claims.claim_entry(field, &key)?;
            container.insert(key.clone(), value.clone());
            reply.insert(key, value);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::proto::{KeyValue, OwningPlugins};

    /// Returns the key of a pair, and counts how often.
    fn counted(looks: &Cell<usize>) -> impl Fn(&KeyValue) -> &str {
        |pair| {
            looks.set(looks.get() + 1);
            &pair.key
        }
    }

    /// Lists of thirty thousand entries fit into a message, and merged pair by pair take minutes.
    #[test]
    fn each_entry_is_looked_at_a_few_times() {
        const MANY: usize = 1000;
        let looks = Cell::new(0);
        let mut owners = OwningPlugins::default();
        let keys = |prefix: &'static str| (0..MANY).map(move |at| format!("{prefix}{at}"));
        let pairs = |keys: &mut dyn Iterator<Item = String>| -> Vec<KeyValue> {
            keys.map(|key| KeyValue { key, value: String::new() }).collect()
        };
        let mut reply = Vec::new();
        let mut container: Vec<KeyValue> = pairs(&mut keys(""));
        let removed = pairs(&mut keys("-"));
        let replaced = pairs(&mut keys("-").chain(keys("")));
        for (plugin, new, left) in [("00-a", removed, 0), ("10-b", replaced, MANY)] {
            let mut claims = Claims { owners: &mut owners, container: "c", plugin };
            merge_list(&mut claims, Field::Env, new, &mut reply, counted(&looks))
                .expect("they set nothing that the other sets");
            see(&reply, &mut container, counted(&looks), counted(&looks), Clone::clone);
            assert_eq!(container.len(), left);
        }
        assert_eq!(reply.len(), 2 * MANY);
        assert!(looks.get() < 20 * MANY, "{} looks", looks.get());
    }
}
