//! Tests of the stream core: tables for each rule, properties for what must hold of any input. Frames are built by hand, as
//! pgoutput writes them; `store` plays the database.

mod frames;
mod source;
mod store;

mod assembling;
mod decoding;
mod effects;
mod grouping;
mod large;
mod pairing;
mod projecting;
mod recorded;
