//! Values that a program adds to calls and connections, found by their types.

use std::{
    any::Any,
    fmt,
    sync::{Arc, OnceLock},
};

use crate::{contain::Contained, sync::Mutex, transport::lock};

/// Values that the program adds to a call or to a connection: an authenticated user, a session, a span.
///
/// Interceptors, observers and handlers add them for those that come after. There is one value of each type.
///
/// Nothing is allocated before the first value is added.
///
/// ```
/// use ttrpc::Extensions;
///
/// #[derive(Debug, PartialEq)]
/// struct User(String);
///
/// let extensions = Extensions::default();
/// extensions.insert(User("ann".into()));
/// assert_eq!(*extensions.get::<User>().unwrap(), User("ann".into()));
/// ```
#[derive(Default)]
pub struct Extensions {
    values: OnceLock<Arc<Mutex<Values>>>,
}

/// The values. The last holder of a call or a connection drops them, which may be a task that serves others as well.
type Values = Vec<Contained<Arc<dyn Any + Send + Sync>>>;

impl Extensions {
    /// Returns another holder of the same values.
    pub(crate) fn share(&self) -> Self {
        let values = self.values.get_or_init(Arc::default).clone();
        Extensions { values: values.into() }
    }

    /// Adds a value, in place of an earlier one of its type, which is returned.
    pub fn insert<T: Any + Send + Sync>(&self, value: T) -> Option<Arc<T>> {
        let value = Contained::new(Arc::new(value) as Arc<dyn Any + Send + Sync>);
        let mut values = lock(self.values.get_or_init(Arc::default));
        let place = values.iter_mut().find(|value| (****value).is::<T>());
        let before = match place {
            Some(place) => Some(std::mem::replace(place, value)),
            None => {
                values.push(value);
                None
            }
        };
        drop(values);
        before.and_then(|value| value.into_inner().downcast().ok())
    }

    /// Returns the value of this type.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let values = lock(self.values.get()?);
        let value = values.iter().find(|value| (****value).is::<T>()).cloned();
        drop(values);
        value?.into_inner().downcast().ok()
    }

    /// Takes the value of this type out.
    pub fn remove<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let mut values = lock(self.values.get()?);
        let at = values.iter().position(|value| (***value).is::<T>())?;
        let value = values.swap_remove(at);
        drop(values);
        value.into_inner().downcast().ok()
    }
}

/// Without the values, which may be secrets.
impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.values.get().map_or(0, |values| lock(values).len());
        write!(f, "{count} extensions")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_hold_one_value_of_each_type() {
        let extensions = Extensions::default();
        assert_eq!(extensions.insert(1u8), None);
        assert_eq!(extensions.insert("one"), None);
        assert_eq!(extensions.insert(2u8), Some(Arc::new(1)));
        assert_eq!(
            (extensions.get(), extensions.get()),
            (Some(Arc::new(2u8)), Some(Arc::new("one")))
        );
        assert_eq!(extensions.remove::<u8>(), Some(Arc::new(2)));
        assert_eq!((extensions.get::<u8>(), extensions.remove::<u16>()), (None, None));
    }

    #[test]
    fn extensions_print_their_number_alone() {
        let extensions = Extensions::default();
        assert_eq!(format!("{extensions:?}"), "0 extensions");
        extensions.insert("secret");
        assert_eq!(format!("{extensions:?}"), "1 extensions");
    }
}
