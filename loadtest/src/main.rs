//! Load tests and verification for Tidegate: speaks the protocol like a client.

fn main() {}
