//! Any bytes may arrive: what the table describes is read exactly, everything else is refused by name.

use crate::choices::{self, Choices};
use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_protocol::*;

const LIMITS: Limits = Limits::FROM_CLIENT;

/// Reads as the side that receives frames of this direction, and gives what it would write.
fn rewrite(direction: Direction, bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    match direction {
        Direction::ToServer => {
            let frame = ClientFrame::decode(bytes, &LIMITS)?;
            let owned = frame.clone().into_owned();
            assert_eq!(owned.encode(), frame.encode());
            Ok(frame.encode())
        }
        Direction::ToClient => {
            let frame = ServerFrame::decode(bytes, &LIMITS)?;
            let owned = frame.clone().into_owned();
            assert_eq!(owned.encode(), frame.encode());
            Ok(frame.encode())
        }
    }
}

fn a_frame() -> impl Strategy<Value = (&'static Frame, Vec<u8>)> {
    let all: Vec<_> = frames().collect();
    (prop::sample::select(all), vec(any::<u8>(), 0..600))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn every_frame_of_the_table_is_read_and_written_back_unchanged((frame, choices) in a_frame()) {
        let bytes = choices::assemble(frame.name, &choices::pairs(frame, &mut Choices(&choices)));
        prop_assert_eq!(rewrite(frame.direction, &bytes), Ok(bytes.clone()));
        prop_assert_eq!(frame_name(&bytes), Ok(frame.name));
    }

    #[test]
    fn order_of_fields_and_unknown_fields_do_not_matter((frame, choices) in a_frame()) {
        let mut choices = Choices(&choices);
        let pairs = choices::pairs(frame, &mut choices);
        let plain = choices::assemble(frame.name, &pairs);
        let mut moved = pairs.clone();
        let mut unknown = b"\xa6future".to_vec();
        // {"a": [value, {}]}
        unknown.extend_from_slice(b"\x81\xa1a\x92");
        choices::value(&mut choices, &mut unknown, true);
        unknown.push(0x80);
        moved.insert(choices.below(moved.len() + 1), unknown);
        let turn = choices.below(moved.len());
        moved.rotate_left(turn);
        prop_assert_eq!(rewrite(frame.direction, &choices::assemble(frame.name, &moved)), Ok(plain));
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        let _ = rewrite(Direction::ToServer, &bytes);
        let _ = rewrite(Direction::ToClient, &bytes);
        let _ = decode_row(&bytes);
        let _ = frame_name(&bytes);
    }

    #[test]
    fn damaged_frames_never_panic_and_what_is_still_read_is_stable(
        (frame, choices) in a_frame(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..4),
    ) {
        let mut bytes = choices::assemble(frame.name, &choices::pairs(frame, &mut Choices(&choices)));
        for (at, byte, kind) in damage {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => {}
            }
        }
        for direction in [Direction::ToServer, Direction::ToClient] {
            if let Ok(written) = rewrite(direction, &bytes) {
                prop_assert_eq!(rewrite(direction, &written), Ok(written.clone()));
            }
        }
    }

    #[test]
    fn every_proper_prefix_of_a_frame_is_refused((frame, choices) in a_frame(), at in any::<prop::sample::Index>()) {
        let bytes = choices::assemble(frame.name, &choices::pairs(frame, &mut Choices(&choices)));
        let cut = &bytes[..at.index(bytes.len())];
        prop_assert!(rewrite(frame.direction, cut).is_err());
    }
}

/// A push of the given mutations, each already encoded.
fn push(mutations: &[&[u8]]) -> Vec<u8> {
    let mut out = b"\x87\xa1t\xa4push\xa3ref\x01\xa5batch\xc4\x10".to_vec();
    out.extend_from_slice(&[7; 16]);
    out.extend_from_slice(b"\xa6atomic\xc2\xa2sv\x01\xa5acked\x00\xa9mutations");
    out.push(0x90 | mutations.len() as u8);
    out.extend(mutations.concat());
    out
}

/// An update of key 1 of table 1 that sets column `c` to the given MessagePack value.
fn setting(number: u8, value: &[u8]) -> Vec<u8> {
    let mut out = b"\x85\xa1n".to_vec();
    out.push(number);
    out.extend_from_slice(b"\xa5table\x01\xa2op\xa6update\xa3key\x01\xa4cols\x81\xa1c");
    out.extend_from_slice(value);
    out
}

#[test]
fn dt05_a_malformed_value_spoils_its_own_mutation_only() {
    let cases: &[(&[u8], InvalidReason)] = &[
        // Half of a surrogate pair, as an encoder that does not check writes it.
        (b"\xa3\xed\xa0\xbd", InvalidReason::NotUtf8),
        (b"\xa3a\0b", InvalidReason::Nul),
        (b"\xcf\x80\0\0\0\0\0\0\0", InvalidReason::IntegerRange),
        (b"\x81\xa1n\x01", InvalidReason::Type),
        (b"\xd4\x01\x02", InvalidReason::Type),
        (b"\xc7\x03\xff\x01\x02\x03", InvalidReason::Type),
        (b"\x92\x01\x91\x02", InvalidReason::Element),
        (b"\x92\x01\xa1\0", InvalidReason::Element),
        (b"\x91\x80", InvalidReason::Element),
    ];
    for (value, reason) in cases {
        let bytes = push(&[&setting(1, b"\x2a"), &setting(2, value), &setting(3, b"\xa0")]);
        let Ok(ClientFrame::Push(push)) = ClientFrame::decode(&bytes, &LIMITS) else { panic!("{reason:?}") };
        let [first, second, third] = &push.mutations[..] else { panic!("three mutations") };
        assert_eq!(first.cols.get("c"), Some(&Value::Int(42)));
        assert_eq!(first.cols.invalid(), None);
        assert_eq!(second.cols.invalid(), Some(("c", *reason)));
        assert_eq!(third.cols.get("c"), Some(&Value::Str("".into())), "empty is a value (DT-08)");
        assert_eq!(ClientFrame::from(push).encode(), bytes, "kept as it came");
    }
}

#[test]
fn dt05_a_malformed_key_spoils_its_own_mutation_only() {
    let mutation = b"\x84\xa1n\x01\xa5table\x01\xa2op\xa6delete\xa3key\xa3\xed\xa0\xbd";
    let bytes = push(&[mutation, &setting(2, b"\xc0")]);
    let Ok(ClientFrame::Push(push)) = ClientFrame::decode(&bytes, &LIMITS) else { panic!() };
    assert!(matches!(&push.mutations[0].key, Value::Invalid(Invalid { reason: InvalidReason::NotUtf8, .. })));
    assert_eq!(push.mutations[1].cols.get("c"), Some(&Value::Nil));
}

#[test]
fn a_column_named_twice_is_invalid_not_the_last_one() {
    let mutation = b"\x85\xa1n\x01\xa5table\x01\xa2op\xa6update\xa3key\x01\xa4cols\x82\xa1c\x01\xa1c\x02";
    let bytes = push(&[mutation]);
    let Ok(ClientFrame::Push(push)) = ClientFrame::decode(&bytes, &LIMITS) else { panic!() };
    assert_eq!(push.mutations[0].cols.invalid(), Some(("c", InvalidReason::Duplicate)));
}

#[test]
fn dt02_integers_of_64_bits_are_exact_and_beyond_are_refused() {
    for value in [i64::MIN, -9007199254740993, 9007199254740992, 9007199254740993, i64::MAX] {
        let mut row = vec![0x91, 0xd3];
        row.extend_from_slice(&value.to_be_bytes());
        assert_eq!(decode_row(&row).unwrap(), [Value::Int(value)]);
    }
    let row = b"\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff";
    assert!(matches!(&decode_row(row).unwrap()[..], [Value::Invalid(_)]));
}

#[test]
fn dt08_null_empty_and_omitted_are_three_things() {
    let bytes = push(&[
        &setting(1, b"\xc0"),
        &setting(2, b"\xa0"),
        b"\x84\xa1n\x03\xa5table\x01\xa2op\xa6update\xa3key\xa0",
    ]);
    let Ok(ClientFrame::Push(push)) = ClientFrame::decode(&bytes, &LIMITS) else { panic!() };
    let column = |n: usize| push.mutations[n].cols.get("c");
    assert_eq!((column(0), column(1), column(2)), (Some(&Value::Nil), Some(&Value::Str("".into())), None));
    assert_eq!(push.mutations[2].key, Value::Str("".into()), "an empty key is a key");
}

#[test]
fn a_length_that_lies_is_refused_before_memory_is_reserved() {
    let numbers = |head: &[u8]| [b"\x83\xa1t\xa4void\xa3ref\x01\xa7numbers", head].concat();
    for (head, too_large) in [
        (&b"\xdd\xff\xff\xff\xff"[..], true),
        (b"\xdc\xff\xff", true),
        // Within the limit, but there are not that many bytes.
        (b"\xdc\x20\x00", false),
    ] {
        let error = ClientFrame::decode(&numbers(head), &LIMITS).unwrap_err();
        assert_eq!(matches!(error, DecodeError::TooLarge { .. }), too_large, "{error}");
    }
    for head in [&b"\xdb\xff\xff\xff\xff"[..], b"\xc6\xff\xff\xff\xff", b"\xdf\x00\x00\x20\x00"] {
        let unknown = [b"\x82\xa1t\xa4ping\xa1x", head].concat();
        assert!(matches!(ClientFrame::decode(&unknown, &LIMITS), Err(DecodeError::Malformed { .. })));
    }
}

#[test]
fn nesting_in_an_unknown_field_is_bounded() {
    let nested = |depth: usize| {
        let mut bytes = b"\x83\xa1t\xa4ping\xa2id\x01\xa1x".to_vec();
        bytes.resize(bytes.len() + depth, 0x91);
        bytes.push(0xc0);
        bytes
    };
    assert!(ClientFrame::decode(&nested(16), &LIMITS).is_ok());
    let error = ClientFrame::decode(&nested(17), &LIMITS).unwrap_err();
    assert_eq!(error.code(), ErrorCode::FrameTooLarge);
    assert_eq!(ClientFrame::decode(&nested(1_000_000), &LIMITS).unwrap_err(), error);
}

#[test]
fn a_frame_longer_than_the_limit_is_not_looked_at() {
    let limits = Limits { frame_bytes_max: 3, items_max: 10 };
    let error = ClientFrame::decode(b"\x82\xa1t\xa4ping\xa2id\x01", &limits).unwrap_err();
    assert_eq!(error, DecodeError::TooLarge { frame: None, reason: Reason::TooManyBytes });
}

#[test]
fn q1_errors_and_debug_output_hold_nothing_of_a_frame_but_names() {
    let secret = "hunter2";
    let hello = Hello {
        versions: vec![3],
        token: Some(Secret(secret.into())),
        user: None,
        client: ClientId(uuid::Uuid::nil()),
        new: true,
        sv: None,
        awaited: vec![],
        acked: MutationNumber(0),
    };
    assert!(!format!("{hello:?}").contains(secret));
    let value = Value::Str(secret.into());
    let array = Value::Array(Elements::new(std::slice::from_ref(&value)).unwrap());
    assert!(
        !format!("{:?}", (&value, &array, Key::Text(secret.into()), Bin::from(secret.as_bytes())))
            .contains(secret)
    );

    // A str where a number belongs: the error names frame and field, not the str.
    let error = ClientFrame::decode(b"\x82\xa1t\xa4ping\xa2id\xa7hunter2", &LIMITS).unwrap_err();
    assert_eq!(error.to_string(), "frame `ping` is malformed at `id`: expected integer");
    // An unknown type is shown, bounded and made harmless.
    let error =
        ClientFrame::decode(b"\x81\xa1t\xd9\x28<script>\n\xff0123456789012345678901234567890", &LIMITS)
            .unwrap_err();
    assert_eq!(error.to_string(), "frame type ?script???0123456789012345678901 is unknown");
}
