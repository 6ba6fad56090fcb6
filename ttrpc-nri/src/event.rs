//! Events, and sets of them.

use std::{
    fmt,
    ops::{BitAnd, BitOr, Sub},
    str::FromStr,
};

pub use crate::proto::Event;

/// All events, in the order of their numbers.
const EVENTS: [Event; 14] = [
    Event::RunPodSandbox,
    Event::StopPodSandbox,
    Event::RemovePodSandbox,
    Event::CreateContainer,
    Event::PostCreateContainer,
    Event::StartContainer,
    Event::PostStartContainer,
    Event::UpdateContainer,
    Event::PostUpdateContainer,
    Event::StopContainer,
    Event::RemoveContainer,
    Event::UpdatePodSandbox,
    Event::PostUpdatePodSandbox,
    Event::ValidateContainerAdjustment,
];

impl Event {
    /// Returns the name of the event's method, such as `CreateContainer`.
    pub fn name(self) -> &'static str {
        match self {
            Event::Unknown => "Unknown",
            Event::RunPodSandbox => "RunPodSandbox",
            Event::StopPodSandbox => "StopPodSandbox",
            Event::RemovePodSandbox => "RemovePodSandbox",
            Event::CreateContainer => "CreateContainer",
            Event::PostCreateContainer => "PostCreateContainer",
            Event::StartContainer => "StartContainer",
            Event::PostStartContainer => "PostStartContainer",
            Event::UpdateContainer => "UpdateContainer",
            Event::PostUpdateContainer => "PostUpdateContainer",
            Event::StopContainer => "StopContainer",
            Event::RemoveContainer => "RemoveContainer",
            Event::UpdatePodSandbox => "UpdatePodSandbox",
            Event::PostUpdatePodSandbox => "PostUpdatePodSandbox",
            Event::ValidateContainerAdjustment => "ValidateContainerAdjustment",
            Event::Last => "Last",
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of events, as a plugin subscribes to them: bit `n - 1` is event number `n`.
///
/// It is printed and parsed as names with commas between; `all`, `pod` and `container` name several. Case does not count.
///
/// ```
/// use ttrpc_nri::{Event, EventMask};
///
/// let mask: EventMask = "CreateContainer, pod".parse()?;
/// assert!(mask.contains(Event::CreateContainer) && mask.contains(Event::StopPodSandbox));
/// assert_eq!((mask - EventMask::POD).to_string(), "CreateContainer");
/// # Ok::<(), ttrpc_nri::UnknownEvent>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct EventMask(i32);

impl EventMask {
    /// No event.
    pub const NONE: EventMask = EventMask(0);
    /// Every event of NRI v0.12.5.
    pub const ALL: EventMask = EventMask((1 << 14) - 1);
    /// Every event of pods.
    pub const POD: EventMask = EventMask::NONE
        .with(Event::RunPodSandbox)
        .with(Event::StopPodSandbox)
        .with(Event::RemovePodSandbox)
        .with(Event::UpdatePodSandbox)
        .with(Event::PostUpdatePodSandbox);
    /// Every event of containers, with the validation of adjustments.
    pub const CONTAINER: EventMask = EventMask(EventMask::ALL.0 & !EventMask::POD.0);
    /// The events of before NRI v0.10.
    pub(crate) const OLD: EventMask = EventMask((1 << 11) - 1);

    /// Makes a mask of the number on the wire. Bits that no event has are kept.
    pub const fn from_bits(bits: i32) -> Self {
        EventMask(bits)
    }

    /// Returns the number on the wire.
    pub const fn bits(self) -> i32 {
        self.0
    }

    /// Adds an event. [`Event::Unknown`] adds nothing.
    #[must_use]
    pub const fn with(self, event: Event) -> Self {
        EventMask(self.0 | bit(event))
    }

    /// Removes an event.
    #[must_use]
    pub const fn without(self, event: Event) -> Self {
        EventMask(self.0 & !bit(event))
    }

    /// Returns whether the event is in the set.
    pub const fn contains(self, event: Event) -> bool {
        self.0 & bit(event) != 0
    }

    /// Returns whether there is no event in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the events in the set, by number.
    pub fn iter(self) -> impl Iterator<Item = Event> {
        EVENTS.into_iter().filter(move |&event| self.contains(event))
    }
}

const fn bit(event: Event) -> i32 {
    match event {
        Event::Unknown => 0,
        event => 1 << (event as i32 - 1),
    }
}

impl BitOr for EventMask {
    type Output = EventMask;

    fn bitor(self, other: Self) -> Self {
        EventMask(self.0 | other.0)
    }
}

impl BitAnd for EventMask {
    type Output = EventMask;

    fn bitand(self, other: Self) -> Self {
        EventMask(self.0 & other.0)
    }
}

impl Sub for EventMask {
    type Output = EventMask;

    fn sub(self, other: Self) -> Self {
        EventMask(self.0 & !other.0)
    }
}

impl FromIterator<Event> for EventMask {
    fn from_iter<T: IntoIterator<Item = Event>>(events: T) -> Self {
        events.into_iter().fold(EventMask::NONE, EventMask::with)
    }
}

impl fmt::Display for EventMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for event in self.iter() {
            write!(f, "{separator}{event}")?;
            separator = ",";
        }
        match *self - EventMask::ALL {
            EventMask(0) => Ok(()),
            EventMask(unknown) => write!(f, "{separator}unknown({unknown:#x})"),
        }
    }
}

impl fmt::Debug for EventMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventMask({self})")
    }
}

/// A name that is no event's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no NRI event: names are those of methods, such as CreateContainer, and `all`, `pod`, `container`"
)]
pub struct UnknownEvent(String);

impl FromStr for EventMask {
    type Err = UnknownEvent;

    fn from_str(text: &str) -> Result<Self, UnknownEvent> {
        text.split(',').map(str::trim).try_fold(EventMask::NONE, |mask, name| {
            let named = match name.to_ascii_lowercase().as_str() {
                "all" => EventMask::ALL,
                "pod" | "podsandbox" => EventMask::POD,
                "container" => EventMask::CONTAINER,
                lower => EVENTS
                    .into_iter()
                    .find(|event| event.name().eq_ignore_ascii_case(lower))
                    .map(|event| EventMask::NONE.with(event))
                    .ok_or_else(|| UnknownEvent(name.to_owned()))?,
            };
            Ok(mask | named)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_printed_and_parsed() {
        for event in EVENTS {
            let mask = EventMask::NONE.with(event);
            assert_eq!(mask.to_string(), event.name());
            assert_eq!(mask.to_string().to_uppercase().parse(), Ok(mask));
            assert_eq!(mask.bits(), 1 << (event as i32 - 1));
        }
        assert_eq!(EventMask::ALL.to_string().parse(), Ok(EventMask::ALL));
        assert_eq!("all".parse(), Ok(EventMask::ALL));
        assert_eq!("pod,container".parse(), Ok(EventMask::ALL));
        assert_eq!("create".parse::<EventMask>(), Err(UnknownEvent("create".into())));
        assert_eq!(
            EventMask::from_bits(0x2008).to_string(),
            "CreateContainer,ValidateContainerAdjustment"
        );
        assert_eq!(EventMask::from_bits(0x4000).to_string(), "unknown(0x4000)");
        assert_eq!(EventMask::NONE.to_string(), "");
    }

    #[test]
    fn masks_are_sets() {
        let both = EventMask::POD | EventMask::CONTAINER;
        assert_eq!(both, EventMask::ALL);
        assert!((EventMask::POD & EventMask::CONTAINER).is_empty());
        assert_eq!(both.iter().collect::<EventMask>(), both);
        assert_eq!(both.without(Event::RunPodSandbox) | EventMask::POD, both);
        assert!(EventMask::OLD.contains(Event::RemoveContainer));
        assert!(!EventMask::OLD.contains(Event::UpdatePodSandbox));
    }
}
