//! The streams of a connection by id.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// Capacity that an empty map keeps at most, in streams: some 13 KiB. A connection that was busy once costs
/// no more than that from then on, and one that has bursts of 256 calls need not make its map for each.
const IDLE_STREAMS: usize = 448;

/// Values by stream id. The first lies in the map itself: most connections have one call at a time, and no other
/// memory is allocated or looked at for it.
#[derive(Debug)]
pub(super) struct StreamMap<V> {
    first: Option<(u32, V)>,
    others: HashMap<u32, V, BuildHasherDefault<IdHasher>>,
}

impl<V> Default for StreamMap<V> {
    fn default() -> Self {
        StreamMap { first: None, others: HashMap::default() }
    }
}

impl<V> StreamMap<V> {
    /// Adds a stream, which the map does not have.
    #[inline]
    pub(super) fn insert(&mut self, id: u32, value: V) {
        if self.first.is_none() {
            self.first = Some((id, value));
        } else {
            // Made where it is kept, as `insert` does not.
            self.others.entry(id).insert_entry(value);
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut V> {
        match &mut self.first {
            Some((first, value)) if *first == id => Some(value),
            _ => self.others.get_mut(&id),
        }
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        self.first.as_ref().is_some_and(|(first, _)| *first == id) || self.others.contains_key(&id)
    }

    #[inline]
    pub(super) fn remove(&mut self, id: u32) -> Option<V> {
        match &self.first {
            Some((first, _)) if *first == id => self.first.take().map(|(_, value)| value),
            _ => self.remove_other(id),
        }
    }

    fn remove_other(&mut self, id: u32) -> Option<V> {
        let value = self.others.remove(&id);
        if self.others.is_empty() && self.others.capacity() > IDLE_STREAMS {
            self.others = HashMap::default();
        }
        value
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    /// In no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &V)> {
        let first = self.first.iter().map(|(id, value)| (*id, value));
        first.chain(self.others.iter().map(|(id, value)| (*id, value)))
    }

    /// In no order.
    pub(super) fn into_values(self) -> impl Iterator<Item = V> {
        self.first.into_iter().map(|(_, value)| value).chain(self.others.into_values())
    }
}

/// Spreads ids by multiplication. Ids rise and a connection has a limited number of streams, so a
/// peer gains nothing from choosing them.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        // 2⁶⁴ divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4).
        self.0 = (self.0 ^ u64::from(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, hash::Hash};

    use super::*;

    /// Inserts three ids and removes them in all orders, over and over, beside a map of the standard library.
    #[test]
    fn a_stream_map_is_a_map() {
        const IDS: usize = 3;
        let len = if cfg!(miri) { 4 } else { 6 };
        for steps in 0..(2 * IDS).pow(len) {
            let (mut map, mut expected) = (StreamMap::default(), HashMap::new());
            for at in 0..len {
                let step = steps / (2 * IDS).pow(at) % (2 * IDS);
                let id = (step / 2) as u32;
                if step.is_multiple_of(2) {
                    assert_eq!(map.remove(id), expected.remove(&id));
                } else if expected.insert(id, at).is_none() {
                    map.insert(id, at);
                } else {
                    *map.get_mut(id).expect("it was inserted") = at;
                }
                assert_eq!(map.len(), expected.len());
            }
            for id in 0..IDS as u32 {
                assert_eq!(map.contains(id), expected.contains_key(&id));
                assert_eq!(map.get_mut(id).copied(), expected.get(&id).copied());
            }
            let all: HashMap<_, _> = map.iter().map(|(id, at)| (id, *at)).collect();
            assert_eq!(all, expected);
            let values: HashSet<_> = map.into_values().collect();
            assert_eq!(values, expected.into_values().collect());
        }
    }

    #[test]
    fn one_stream_at_a_time_allocates_nothing() {
        let mut map = StreamMap::default();
        for id in 1..100 {
            map.insert(id, ());
            assert_eq!((map.remove(id), map.others.capacity()), (Some(()), 0));
        }
    }

    #[test]
    fn a_map_that_had_many_streams_keeps_little_when_they_have_ended() {
        for is_rising in [true, false] {
            let mut map = StreamMap::default();
            (0..1000).for_each(|id| map.insert(id, ()));
            for index in 0..1000 {
                map.remove(if is_rising { index } else { 999 - index });
            }
            assert!(map.len() == 0 && map.others.capacity() <= IDLE_STREAMS);
        }
    }

    #[test]
    fn a_map_that_had_few_streams_keeps_room_for_them() {
        let mut map = StreamMap::default();
        (0..200).for_each(|id| map.insert(id, ()));
        (0..200).for_each(|id| _ = map.remove(id));
        assert!(map.len() == 0 && map.others.capacity() > 0);
    }

    #[test]
    fn ids_are_spread_over_all_bits_of_their_hashes() {
        let hash = |id: u32| {
            let mut hasher = IdHasher::default();
            id.hash(&mut hasher);
            hasher.finish()
        };
        let ids: Vec<u32> = (1..=127).step_by(2).collect();
        // A map looks at the lowest bits and at the seven highest ones.
        for bits in [0, 57] {
            let parts: HashSet<_> = ids.iter().map(|id| (hash(*id) >> bits) & 127).collect();
            assert!(parts.len() > ids.len() / 2, "{} of {}", parts.len(), ids.len());
        }
        let mut bytes = IdHasher::default();
        bytes.write(&[1]);
        assert_eq!(bytes.finish(), hash(1));
    }
}
