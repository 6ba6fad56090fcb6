//! The command line `ttrpc`.
