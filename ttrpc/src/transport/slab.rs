//! Values by keys, which are used again when their values are removed; small in code and in memory.

/// Values that come and go.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    values: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { values: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Keeps a value, and returns its key.
    pub(crate) fn insert(&mut self, value: T) -> usize {
        match self.free.pop() {
            Some(key) => {
                self.values[key] = Some(value);
                key
            }
            None => {
                self.values.push(Some(value));
                self.values.len() - 1
            }
        }
    }

    /// Takes a value out. Empty, it keeps no memory.
    pub(crate) fn remove(&mut self, key: usize) -> Option<T> {
        let value = self.values.get_mut(key)?.take()?;
        self.free.push(key);
        if self.len() == 0 {
            *self = Slab::default();
        }
        Some(value)
    }

    pub(crate) fn get_mut(&mut self, key: usize) -> Option<&mut T> {
        self.values.get_mut(key)?.as_mut()
    }

    /// The values, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.values.iter().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_used_again_and_memory_is_given_back() {
        let mut slab = Slab::default();
        let keys: Vec<_> = (0..3).map(|value| slab.insert(value)).collect();
        assert_eq!(keys, [0, 1, 2]);
        assert_eq!(slab.remove(1), Some(1));
        assert_eq!(slab.remove(1), None);
        assert_eq!(slab.insert(9), 1);
        assert_eq!(slab.iter().copied().collect::<Vec<_>>(), [0, 9, 2]);
        *slab.get_mut(0).unwrap() = 7;
        assert_eq!((slab.remove(0), slab.remove(1), slab.remove(2)), (Some(7), Some(9), Some(2)));
        assert_eq!((slab.len(), slab.values.capacity()), (0, 0));
    }
}
