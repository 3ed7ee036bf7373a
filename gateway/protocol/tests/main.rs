//! Tests of the wire protocol.

mod bless;
mod choices;
mod decoding;
mod json;
mod markdown;
mod pages;
mod text;
mod typescript;
mod vectors;
mod wire_guard;
