//! The decoder: every message, every malformed frame.

use crate::frames::{self, Cell};
use proptest::prelude::*;
use tidegate_model::{Lsn, RowOperation};
use tidegate_stream::decode::{Begin, Commit, DecodeError, Message, Value, decode};

fn sample_frames() -> Vec<Vec<u8>> {
    let row = [Cell::from("1"), Cell::Null, Cell::Unchanged, Cell::from("é")];
    vec![
        frames::begin(0x16_B374_D848, 731),
        frames::commit(0x16_B374_D848),
        frames::origin(),
        frames::type_name(99),
        frames::relation(16_401, "public", "item", b'd', &[("id", 20, true), ("body", 25, false)]),
        frames::insert(16_401, &row),
        frames::update(16_401, None, &row),
        frames::update(16_401, Some((b'K', &row)), &row),
        frames::update(16_401, Some((b'O', &row)), &row),
        frames::delete(16_401, &row),
        frames::truncate(&[16_401, 16_402]),
        frames::message(true, "tidegate.fence", b"1:s:"),
        frames::message(false, "", b""),
    ]
}

#[test]
fn every_message_decodes_to_its_fields() {
    assert_eq!(
        decode(&frames::begin(0x10, 7)),
        Ok(Message::Begin(Begin { commit_lsn: Lsn(0x10), committed_at_pg_micros: 160, xid: 7 }))
    );
    assert_eq!(
        decode(&frames::commit(0x10)),
        Ok(Message::Commit(Commit { commit_lsn: Lsn(0x10), end_lsn: Lsn(0x18) }))
    );
    assert_eq!(decode(&frames::origin()), Ok(Message::Origin));
    assert_eq!(decode(&frames::type_name(1)), Ok(Message::Type));

    let frame = frames::relation(5, "", "pg_class", b'n', &[("a", 20, true), ("b", 25, false)]);
    let Ok(Message::Relation(relation)) = decode(&frame) else { panic!("a relation") };
    assert_eq!(
        (relation.oid, relation.schema, relation.name, relation.replica_identity),
        (5, "pg_catalog", "pg_class", b'n')
    );
    let columns: Vec<_> = relation.columns.iter().map(|c| (c.name, c.type_oid, c.in_identity)).collect();
    assert_eq!(columns, [("a", 20, true), ("b", 25, false)]);

    let frame = frames::truncate(&[1, 70_000]);
    let Ok(Message::Truncate(truncate)) = decode(&frame) else { panic!("a truncate") };
    assert_eq!(truncate.relation_oids().collect::<Vec<_>>(), [1, 70_000]);

    let frame = frames::message(true, "p", b"\xff\0");
    let Ok(Message::Logical(message)) = decode(&frame) else { panic!("a message") };
    assert_eq!((message.transactional, message.prefix, message.content), (true, "p", &b"\xff\0"[..]));
}

#[test]
fn dt01_dt08_null_empty_and_unchanged_values_stay_apart() {
    let frame = frames::insert(5, &[Cell::Null, Cell::from(""), Cell::Unchanged, Cell::from("NULL")]);
    let Ok(Message::Row(row)) = decode(&frame) else { panic!("a row") };
    assert_eq!((row.relation_oid, row.operation), (5, RowOperation::Insert));
    let values: Vec<_> = row.new.expect("a new row").values().collect();
    assert_eq!(values, [Value::Null, Value::Text(b""), Value::Unchanged, Value::Text(b"NULL")]);
}

#[test]
fn dt01_empty_slots_of_an_old_key_tuple_are_not_sent_rather_than_null() {
    let old = [Cell::from("1"), Cell::Null];
    for tag in [b'K', b'O'] {
        let frame = frames::update(5, Some((tag, &old)), &[Cell::from("1"), Cell::from("x")]);
        let Ok(Message::Row(row)) = decode(&frame) else { panic!("a row") };
        let old = row.old.expect("an old tuple");
        assert_eq!((old.len(), old.key(0), old.key(1), old.key(2)), (2, Some(&b"1"[..]), None, None));
    }
}

#[test]
fn q1_every_truncation_of_every_message_is_a_typed_error() {
    for frame in sample_frames() {
        assert!(decode(&frame).is_ok());
        for end in 0..frame.len() {
            assert!(decode(&frame[..end]).is_err(), "{:?} cut at {end}", frame[0] as char);
        }
        let mut longer = frame.clone();
        longer.push(0);
        assert_eq!(decode(&longer).unwrap_err(), DecodeError::Trailing(1));
    }
}

#[test]
fn q1_forged_lengths_and_tags_are_named() {
    let mut huge = frames::message(true, "p", b"x");
    let at = huge.len() - 5;
    huge[at..at + 4].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(decode(&huge).unwrap_err(), DecodeError::NegativeLength("message"));
    huge[at..at + 4].copy_from_slice(&i32::MAX.to_be_bytes());
    assert_eq!(decode(&huge).unwrap_err(), DecodeError::Truncated("message"));

    assert_eq!(decode(b"").unwrap_err(), DecodeError::Truncated("message kind"));
    assert_eq!(decode(b"S").unwrap_err(), DecodeError::UnknownKind(b'S'), "streaming is off");
    let mut binary = frames::insert(5, &[Cell::from("x")]);
    let at = binary.len() - 6;
    binary[at] = b'b';
    assert_eq!(decode(&binary).unwrap_err(), DecodeError::UnknownTag("tuple", b'b'));
    let mut columns = frames::relation(5, "s", "t", b'd', &[]);
    let at = columns.len() - 2;
    columns[at..].copy_from_slice(&u16::MAX.to_be_bytes());
    assert_eq!(decode(&columns).unwrap_err(), DecodeError::Truncated("relation column"));
    assert_eq!(
        decode(&frames::message(true, "p", b"").to_vec()[..2]).unwrap_err(),
        DecodeError::Truncated("message")
    );
}

/// Reads everything that a message offers, as `assemble` would.
fn read_all(message: &Message<'_>) {
    match message {
        Message::Row(row) => {
            if let Some(new) = row.new {
                assert_eq!(new.values().count(), new.len(), "what was checked reads back");
            }
            if let Some(old) = row.old {
                assert!((0..old.len() + 2).filter_map(|at| old.key(at)).count() <= old.len());
            }
        }
        Message::Truncate(truncate) => drop(truncate.relation_oids().count()),
        _ => {}
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(kind in proptest::sample::select(&b"BCORYIUDTMS"[..]), rest in proptest::collection::vec(any::<u8>(), 0..80)) {
        let mut frame = vec![kind];
        frame.extend(rest);
        if let Ok(message) = decode(&frame) {
            read_all(&message);
        }
    }

    #[test]
    fn no_damage_to_a_frame_makes_the_decoder_panic(
        which in 0..13usize,
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<proptest::sample::Index>(),
    ) {
        let mut frame = sample_frames().swap_remove(which);
        for (at, byte) in damage {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        for end in [frame.len(), cut.index(frame.len())] {
            if let Ok(message) = decode(&frame[..end]) {
                read_all(&message);
            }
        }
    }
}
