//! Tandem.
