//! MessagePack tokens into a `Vec<u8>`, always in the smallest form, so that equal frames have equal bytes.

use crate::wire::UINT_MAX;
use rmp::encode;

/// Writing to memory cannot fail: `Vec`'s `io::Write` never gives an error.
fn infallible<T, E: std::fmt::Debug>(written: Result<T, E>) {
    written.expect("a Vec takes every write");
}

/// MessagePack counts in 32 bits; PostgreSQL's values end at a gibibyte.
fn length(count: usize) -> u32 {
    u32::try_from(count).expect("no value of a frame is longer than 4 GiB")
}

pub(crate) fn nil(out: &mut Vec<u8>) {
    infallible(encode::write_nil(out));
}

pub(crate) fn bool(out: &mut Vec<u8>, value: bool) {
    infallible(encode::write_bool(out, value));
}

pub(crate) fn int(out: &mut Vec<u8>, value: i64) {
    infallible(encode::write_sint(out, value));
}

pub(crate) fn uint(out: &mut Vec<u8>, value: u64) {
    debug_assert!(value <= UINT_MAX, "a uint of the wire fits a double");
    infallible(encode::write_uint(out, value));
}

pub(crate) fn f32(out: &mut Vec<u8>, value: f32) {
    infallible(encode::write_f32(out, value));
}

pub(crate) fn f64(out: &mut Vec<u8>, value: f64) {
    infallible(encode::write_f64(out, value));
}

pub(crate) fn str(out: &mut Vec<u8>, value: &str) {
    length(value.len());
    infallible(encode::write_str(out, value));
}

pub(crate) fn bin(out: &mut Vec<u8>, value: &[u8]) {
    length(value.len());
    infallible(encode::write_bin(out, value));
}

pub(crate) fn array(out: &mut Vec<u8>, count: usize) {
    infallible(encode::write_array_len(out, length(count)));
}

pub(crate) fn map(out: &mut Vec<u8>, count: usize) {
    infallible(encode::write_map_len(out, length(count)));
}
