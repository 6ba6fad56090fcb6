//! The command line `ttrpc`.

fn main() {}
