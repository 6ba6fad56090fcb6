//! Nothing but the measurements in `benches/`.
