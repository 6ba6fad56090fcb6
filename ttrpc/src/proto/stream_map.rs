//! The streams of a connection by id.

use std::{iter, mem};

/// Places that an empty map keeps at most: some 12 KiB. A connection that was busy once costs no more than that from
/// then on, and one that has bursts of 256 calls need not make its map for each.
const IDLE_PLACES: usize = 512;

/// Places of the smallest map that has some.
const MIN_PLACES: usize = 16;

/// A map does not grow to more than so many places for each stream, whatever ids a peer chooses. It keeps what it has
/// until no stream has a place.
const PLACES_PER_STREAM: usize = 4;

/// Values by stream id.
///
/// The first lies in the map itself: most connections have one call at a time, and no other memory is allocated or
/// looked at for it. The ids of calls that are open together mostly follow each other, so the others lie at the places
/// that their ids give them. One whose place is taken, by a stream that lasts, lies apart.
#[derive(Debug)]
pub(super) struct StreamMap<V> {
    first: Option<(u32, V)>,
    /// As many as a power of two, or none.
    places: Vec<Option<(u32, V)>>,
    /// Streams that have places.
    placed: usize,
    /// Streams whose place another one has, by id.
    displaced: Vec<(u32, V)>,
}

impl<V> Default for StreamMap<V> {
    fn default() -> Self {
        StreamMap { first: None, places: Vec::new(), placed: 0, displaced: Vec::new() }
    }
}

impl<V> StreamMap<V> {
    /// Adds a stream, which the map does not have.
    #[inline]
    pub(super) fn insert(&mut self, id: u32, value: V) {
        if self.first.is_none() {
            self.first = Some((id, value));
            return;
        }
        match self.place(id) {
            Some(place @ None) => {
                *place = Some((id, value));
                self.placed += 1;
            }
            _ => self.insert_in_larger(id, value),
        }
    }

    /// All ids are odd.
    #[inline]
    fn index(&self, id: u32) -> usize {
        (id >> 1) as usize & self.places.len().wrapping_sub(1)
    }

    #[inline]
    fn place(&mut self, id: u32) -> Option<&mut Option<(u32, V)>> {
        let index = self.index(id);
        self.places.get_mut(index)
    }

    /// Adds a stream whose place is taken.
    #[inline(never)]
    fn insert_in_larger(&mut self, id: u32, value: V) {
        let places = (2 * self.places.len()).max(MIN_PLACES);
        if places > MIN_PLACES.max(PLACES_PER_STREAM * (self.placed + 1)) {
            self.insert_displaced(id, value);
            return;
        }
        let before = mem::take(&mut self.places);
        self.places.resize_with(places, || None);
        // Twice as many places: no two of those that had some want the same one.
        for stream in before.into_iter().flatten() {
            let place = self.place(stream.0).expect("there are some");
            *place = Some(stream);
        }
        match self.place(id) {
            Some(place @ None) => {
                *place = Some((id, value));
                self.placed += 1;
            }
            _ => self.insert_in_larger(id, value),
        }
    }

    fn insert_displaced(&mut self, id: u32, value: V) {
        // The last place, most of the time: ids rise.
        let index = self.displaced.partition_point(|(other, _)| *other < id);
        self.displaced.insert(index, (id, value));
    }

    fn remove_displaced(&mut self, id: u32) -> Option<V> {
        let index = find(&self.displaced, id)?;
        let (_, value) = self.displaced.remove(index);
        if self.displaced.is_empty() {
            self.displaced = Vec::new();
        }
        Some(value)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut V> {
        if self.first.as_ref().is_some_and(|(first, _)| *first == id) {
            return self.first.as_mut().map(|(_, value)| value);
        }
        let index = self.index(id);
        let StreamMap { places, displaced, .. } = self;
        match places.get_mut(index) {
            Some(Some((other, value))) if *other == id => Some(value),
            _ => find(displaced, id).map(|index| &mut displaced[index].1),
        }
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        let place = self.places.get(self.index(id)).into_iter().flatten();
        self.first.iter().chain(place).any(|(other, _)| *other == id)
            || find(&self.displaced, id).is_some()
    }

    #[inline]
    pub(super) fn remove(&mut self, id: u32) -> Option<V> {
        match &self.first {
            Some((first, _)) if *first == id => self.first.take().map(|(_, value)| value),
            _ => self.remove_other(id),
        }
    }

    #[inline]
    fn remove_other(&mut self, id: u32) -> Option<V> {
        match self.place(id) {
            Some(place) if place.as_ref().is_some_and(|(other, _)| *other == id) => {
                let value = place.take().map(|(_, value)| value);
                self.placed -= 1;
                if self.placed == 0 && self.places.len() > IDLE_PLACES {
                    self.places = Vec::new();
                }
                value
            }
            _ => self.remove_displaced(id),
        }
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.placed + self.displaced.len()
    }

    /// In no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &V)> {
        let placed = iter::once(&self.first).chain(&self.places).flatten();
        placed.chain(&self.displaced).map(|(id, value)| (*id, value))
    }

    /// In no order.
    pub(super) fn into_values(self) -> impl Iterator<Item = V> {
        let placed = iter::once(self.first).chain(self.places).flatten();
        placed.chain(self.displaced).map(|(_, value)| value)
    }
}

/// Where the stream lies in a list that rises.
fn find<V>(streams: &[(u32, V)], id: u32) -> Option<usize> {
    streams.binary_search_by_key(&id, |(other, _)| *other).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

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
            assert_eq!((map.remove(id), map.places.len()), (Some(()), 0));
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
            assert!(map.len() == 0 && map.places.len() <= IDLE_PLACES);
        }
    }

    #[test]
    fn a_map_that_had_few_streams_keeps_room_for_them() {
        let mut map = StreamMap::default();
        (0..200).for_each(|id| map.insert(id, ()));
        (0..200).for_each(|id| _ = map.remove(id));
        assert!(map.len() == 0 && !map.places.is_empty());
    }

    /// Else a peer would have each of its streams take many places, by the ids that it chooses.
    #[test]
    fn a_map_has_few_places_for_each_stream_whatever_their_ids() {
        let mut map = StreamMap::default();
        for count in 1..=1000u32 {
            map.insert((count << 12) + 1, count);
            assert!(map.places.len() <= MIN_PLACES.max(PLACES_PER_STREAM * count as usize));
        }
        for count in 1..=1000u32 {
            assert_eq!(map.remove((count << 12) + 1), Some(count));
        }
        assert_eq!((map.len(), map.displaced.capacity()), (0, 0));
    }

    /// All others that want its place lie apart while they are open.
    #[test]
    fn a_stream_that_lasts_makes_no_map_larger() {
        let mut map = StreamMap::default();
        (1..=5).for_each(|id| map.insert(id, id));
        for id in 3..1000 {
            map.insert(2 * id + 1, id);
            assert_eq!(map.remove(2 * id + 1), Some(id));
            assert_eq!(map.places.len(), MIN_PLACES);
        }
        assert_eq!(map.len(), 5);
    }
}
