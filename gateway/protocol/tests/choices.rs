//! Random frames from the frame table itself: any bytes are read as a series of choices, so that a failing case shrinks.

use rmp::encode;
use tidegate_protocol::*;

/// A series of choices; zeros once it is used up.
pub struct Choices<'a>(pub &'a [u8]);

impl Choices<'_> {
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }

    fn u64(&mut self) -> u64 {
        let count = self.below(9);
        self.bytes(count).iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    fn text(&mut self) -> String {
        let count = self.below(40);
        (0..count).map(|_| ['a', 'é', '\u{301}', '😀', ':', '%', '"', 'z'][self.below(8)]).collect()
    }
}

fn uint(out: &mut Vec<u8>, value: u64) {
    encode::write_uint(out, value).unwrap();
}

fn sint(out: &mut Vec<u8>, value: i64) {
    encode::write_sint(out, value).unwrap();
}

/// The pairs of a random frame of this type, after `t`, each encoded as name and value.
pub fn pairs(frame: &Frame, choices: &mut Choices) -> Vec<Vec<u8>> {
    fields(frame.fields, choices)
}

/// A frame from its pairs.
pub fn assemble(name: &str, pairs: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    encode::write_map_len(&mut out, 1 + pairs.len() as u32).unwrap();
    encode::write_str(&mut out, "t").unwrap();
    encode::write_str(&mut out, name).unwrap();
    out.extend(pairs.concat());
    out
}

fn fields(fields: &[Field], choices: &mut Choices) -> Vec<Vec<u8>> {
    let mut pairs = Vec::new();
    for field in fields {
        if field.nullable && choices.flag() {
            continue;
        }
        let mut out = Vec::new();
        encode::write_str(&mut out, field.name).unwrap();
        put(&field.shape, field.name, choices, &mut out);
        pairs.push(out);
    }
    pairs
}

fn put(shape: &Shape, name: &str, choices: &mut Choices, out: &mut Vec<u8>) {
    match shape {
        Shape::Bool => encode::write_bool(out, choices.flag()).unwrap(),
        Shape::Uint => {
            // Ids have 31 bits, scope numbers and limits 32, counters 53: the smallest fits all.
            let bits =
                if matches!(name, "ref" | "n" | "count" | "tx" | "set" | "last" | "id") { 31 } else { 30 };
            uint(out, choices.u64() & ((1 << bits) - 1));
        }
        Shape::Str => encode::write_str(out, &choices.text()).unwrap(),
        Shape::Bin => {
            let count = choices.below(60);
            encode::write_bin(out, &choices.bytes(count)).unwrap();
        }
        Shape::Bin16 => encode::write_bin(out, &choices.bytes(16)).unwrap(),
        Shape::Key if choices.flag() => sint(out, choices.u64() as i64),
        Shape::Key => encode::write_str(out, &choices.text()).unwrap(),
        Shape::Value => value(choices, out, true),
        Shape::Columns => {
            let count = 1 + choices.below(5);
            encode::write_map_len(out, count as u32).unwrap();
            for n in 0..count {
                encode::write_str(out, &format!("{}{n}", choices.text())).unwrap();
                value(choices, out, true);
            }
        }
        Shape::Word(words) => {
            encode::write_str(out, words.words[choices.below(words.words.len())].0).unwrap()
        }
        Shape::Number(words) => {
            let number = words.words[choices.below(words.words.len())].0.parse().unwrap();
            uint(out, number);
        }
        Shape::List(item) => {
            let count = choices.below(5);
            encode::write_array_len(out, count as u32).unwrap();
            (0..count).for_each(|_| put(item, name, choices, out));
        }
        Shape::Record(record) => {
            let pairs = fields(record.fields, choices);
            encode::write_map_len(out, pairs.len() as u32).unwrap();
            out.extend(pairs.concat());
        }
        Shape::Tuple(record) => {
            encode::write_array_len(out, record.fields.len() as u32).unwrap();
            for field in record.fields {
                if field.nullable && choices.flag() {
                    encode::write_nil(out).unwrap();
                } else {
                    put(&field.shape, field.name, choices, out);
                }
            }
        }
        Shape::Base if choices.flag() => encode::write_bin(out, &choices.bytes(16)).unwrap(),
        Shape::Base => {
            encode::write_map_len(out, 1).unwrap();
            encode::write_str(out, "after").unwrap();
            uint(out, choices.u64() & UINT_MAX);
        }
    }
}

/// A value of a row, in its smallest form.
pub fn value(choices: &mut Choices, out: &mut Vec<u8>, arrays: bool) {
    match choices.below(if arrays { 8 } else { 7 }) {
        0 => encode::write_nil(out).unwrap(),
        1 => encode::write_bool(out, choices.flag()).unwrap(),
        2 => sint(out, choices.u64() as i64),
        3 => encode::write_f32(out, f32::from_bits(choices.u64() as u32)).unwrap(),
        4 => encode::write_f64(out, f64::from_bits(choices.u64())).unwrap(),
        5 => encode::write_str(out, &choices.text()).unwrap(),
        6 => {
            let count = choices.below(40);
            encode::write_bin(out, &choices.bytes(count)).unwrap();
        }
        _ => {
            let count = choices.below(5);
            encode::write_array_len(out, count as u32).unwrap();
            (0..count).for_each(|_| value(choices, out, false));
        }
    }
}
