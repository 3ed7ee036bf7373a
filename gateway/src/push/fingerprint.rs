//! The fingerprint by which a resent mutation is recognised (V3). It covers content, batch and the batch's membership. Pure.
//!
//! Canonical: integers in their smallest form, columns by name, so that a client may encode anew what it resends. The schema
//! version is left out: the same mutation may be resent under a newer one.

use sha2::{Digest, Sha256};
use tidegate_protocol::{Base, Mutation, MutationOp, Push, Wire};

/// Of every mutation of a push, in order.
pub(super) fn fingerprints(push: &Push<'_>) -> Vec<[u8; 32]> {
    let mut batch = Sha256::new_with_prefix(b"tidegate push 1\0");
    batch.update(push.batch.as_bytes());
    batch.update([u8::from(push.atomic)]);
    batch.update((push.mutations.len() as u64).to_be_bytes());
    for mutation in &push.mutations {
        batch.update(mutation.number.0.to_be_bytes());
    }
    let mut content = Vec::new();
    push.mutations
        .iter()
        .map(|mutation| {
            content.clear();
            put(mutation, &mut content);
            batch.clone().chain_update(&content).finalize().into()
        })
        .collect()
}

fn put(mutation: &Mutation<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&mutation.number.0.to_be_bytes());
    out.extend_from_slice(&mutation.table.0.to_be_bytes());
    out.push(match mutation.op {
        MutationOp::Insert => 1,
        MutationOp::Update => 2,
        MutationOp::Upsert => 3,
        MutationOp::Delete => 4,
    });
    framed(out, |out| mutation.key.put(out));
    match mutation.base {
        Base::None => out.push(0),
        Base::Version(version) => {
            out.push(1);
            out.extend_from_slice(version.0.as_bytes());
        }
        Base::After(number) => {
            out.push(2);
            out.extend_from_slice(&number.0.to_be_bytes());
        }
    }
    let mut columns: Vec<_> = mutation.cols.0.iter().collect();
    columns.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, value) in columns {
        framed(out, |out| out.extend_from_slice(name.as_bytes()));
        framed(out, |out| value.put(out));
    }
}

/// Length first, so that no two contents have one encoding (DT-08).
fn framed(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 8]);
    put(out);
    let length = (out.len() - at - 8) as u64;
    out[at..at + 8].copy_from_slice(&length.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::{RegistryGeneration, RowVersion, TableId};
    use tidegate_protocol::{Columns, MutationNumber, Value};
    use uuid::Uuid;

    fn push(change: impl FnOnce(&mut Push<'static>)) -> [u8; 32] {
        let mutation = |n| Mutation {
            number: MutationNumber(n),
            table: TableId(1),
            op: MutationOp::Update,
            key: Value::Int(7),
            base: Base::None,
            cols: Columns(vec![("a".into(), Value::Str("x".into())), ("b".into(), Value::Nil)]),
        };
        let mut push = Push {
            reference: 1,
            batch: Uuid::from_u128(9),
            atomic: false,
            sv: RegistryGeneration(1),
            acked: MutationNumber(0),
            mutations: vec![mutation(1), mutation(2)],
        };
        change(&mut push);
        fingerprints(&push)[0]
    }

    #[test]
    fn v3_content_batch_and_membership_change_it_and_nothing_else_does() {
        let first = push(|_| {});
        for (what, other) in [
            ("value", push(|p| p.mutations[0].cols.0[0].1 = Value::Str("y".into()))),
            ("null for empty", push(|p| p.mutations[0].cols.0[1].1 = Value::Str("".into()))),
            ("omitted column", push(|p| drop(p.mutations[0].cols.0.pop()))),
            ("key", push(|p| p.mutations[0].key = Value::Str("7".into()))),
            ("op", push(|p| p.mutations[0].op = MutationOp::Upsert)),
            ("table", push(|p| p.mutations[0].table = TableId(2))),
            ("base", push(|p| p.mutations[0].base = Base::Version(RowVersion::UNFENCED))),
            ("batch", push(|p| p.batch = Uuid::from_u128(8))),
            ("atomic", push(|p| p.atomic = true)),
            ("membership", push(|p| drop(p.mutations.pop()))),
        ] {
            assert_ne!(first, other, "{what}");
        }
        for (what, same) in [
            ("request number", push(|p| p.reference = 2)),
            ("schema version", push(|p| p.sv = RegistryGeneration(2))),
            ("acknowledged", push(|p| p.acked = MutationNumber(5))),
            ("order of columns", push(|p| p.mutations[0].cols.0.reverse())),
            ("content of another member", push(|p| p.mutations[1].key = Value::Int(8))),
        ] {
            assert_eq!(first, same, "{what}");
        }
    }
}
