//! Tests of the wire protocol.

mod pages;
