//! The builders write exactly what the frame types write.

use tidegate_protocol::*;
use uuid::Uuid;

fn version(n: u128) -> RowVersion {
    RowVersion(Uuid::from_u128(n))
}

const LIMITS: Limits = Limits::FROM_SERVER;

#[test]
fn a_built_page_is_the_encoded_page_frame() {
    let row = [0x92, 0x2a, 0xa1, b'x'];
    let mut builder = PageBuilder::new(ScopeNumber(9), RegistryGeneration(300));
    // A page that was begun for another scope leaves no trace.
    builder.transaction(1);
    builder.delete(TableId(5), &[0x05], version(5));
    builder.clear(ScopeNumber(7), RegistryGeneration(3));
    assert!(builder.is_empty());
    builder.transaction(40);
    builder.upsert(TableId(1), &[0x2a], version(1), &row);
    builder.delete(TableId(2), b"\xa2k1", version(2));
    builder.transaction(41);
    builder.upsert(TableId(1), &[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0], version(3), &[0x90]);
    assert_eq!(builder.effects(), 3);
    let built = builder.finish(false, b"cursor", 12, ScopeDigest(77), true);
    let effect = |op, table, key, n, row| Effect { op, table: TableId(table), key, version: version(n), row };
    let page = Page {
        scope: ScopeNumber(7),
        sv: RegistryGeneration(3),
        txs: vec![
            TransactionEffects {
                tx: 40,
                effects: vec![
                    effect(EffectOp::Upsert, 1, Key::Int(42), 1, Some(row[..].into())),
                    effect(EffectOp::Delete, 2, Key::Text("k1".into()), 2, None),
                ],
            },
            TransactionEffects {
                tx: 41,
                effects: vec![effect(EffectOp::Upsert, 1, Key::Int(i64::MIN), 3, Some([0x90][..].into()))],
            },
        ],
        more: false,
        cursor: b"cursor"[..].into(),
        count: 12,
        digest: ScopeDigest(77),
        fin: true,
    };
    assert_eq!(ServerFrame::decode(&built, &LIMITS), Ok(page.clone().into()));
    assert_eq!(ServerFrame::from(page).encode(), built);
    assert_eq!(built.last(), Some(&0xc3), "fin is the last byte");
}

#[test]
fn a_built_rebuild_page_is_the_encoded_rebuild_frame_with_any_token() {
    let mut builder = RebuildPageBuilder::new(ScopeNumber(7), RegistryGeneration(3));
    for n in 0..20u8 {
        builder.row(TableId(1), &[n], version(n.into()), &[0x91, n]);
    }
    let frame = |token: &'static [u8], done| Rebuild {
        scope: ScopeNumber(7),
        sv: RegistryGeneration(3),
        rows: (0..20u8)
            .map(|n| RebuildRow {
                table: TableId(1),
                key: Key::Int(n.into()),
                version: version(n.into()),
                row: vec![0x91, n].into(),
            })
            .collect(),
        token: token.into(),
        done,
    };
    assert_eq!(ServerFrame::from(frame(b"one", false)).encode(), builder.finish(b"one", false));
    assert_eq!(ServerFrame::from(frame(b"another", true)).encode(), builder.finish(b"another", true));
}

#[test]
fn a_page_never_exceeds_the_size_that_its_builder_foretells() {
    let mut builder = PageBuilder::new(ScopeNumber(u32::MAX), RegistryGeneration(i32::MAX));
    let cursor = [0; 300];
    for n in 0..100u64 {
        builder.transaction(UINT_MAX - 1000 + n);
        builder.upsert(TableId(i32::MAX), &[0xd3; 9], RowVersion::UNFENCED, &vec![0xc0; n as usize * 700]);
        let page = builder.finish(true, &cursor, UINT_MAX, ScopeDigest(u128::MAX), true);
        assert!(page.len() <= builder.bytes_max(cursor.len()));
    }
    let mut builder = RebuildPageBuilder::new(ScopeNumber(u32::MAX), RegistryGeneration(i32::MAX));
    for _ in 0..100 {
        builder.row(TableId(i32::MAX), &[0xd3; 9], RowVersion::UNFENCED, &[0xc0; 70]);
        assert!(builder.finish(&cursor, true).len() <= builder.bytes_max(cursor.len()));
    }
}

#[test]
fn the_static_cut_is_the_encoded_cut() {
    assert_eq!(ServerFrame::from(Cut {}).encode(), CUT);
}
