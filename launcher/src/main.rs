//! A program.
fn main() {}
