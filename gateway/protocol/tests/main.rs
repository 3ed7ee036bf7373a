//! Tests of the wire protocol.

mod choices;
mod decoding;
mod pages;
