//! A second slot that nobody moves: what PostgreSQL itself says was committed, in which order, whatever we recorded.

use super::World;
use tidegate_model::Lsn;

/// One source transaction as the server decodes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    pub commit_lsn: Lsn,
    pub end_lsn: Lsn,
    pub xid: u32,
    /// Row changes of every published table.
    pub rows: i64,
}

pub struct Observer {
    slot: String,
    /// Everything that commits at or after it is seen.
    pub from: Lsn,
}

impl Observer {
    /// From here on.
    pub async fn start(world: &World) -> Observer {
        let slot = format!("observer_{}", world.db.database.name());
        let from = world
            .lsn(&format!("select lsn from pg_create_logical_replication_slot('{slot}', 'pgoutput')"))
            .await;
        Observer { slot, from }
    }

    /// Everything since the start, in commit order. The slot stays where it is.
    pub async fn transactions(&self, world: &World) -> Vec<Decoded> {
        let sql = "select data from pg_logical_slot_peek_binary_changes($1::text::name, null, null, 'proto_version', '1',
                       'publication_names', 'tidegate', 'messages', 'true')";
        let messages: Vec<Vec<u8>> =
            sqlx::query_scalar(sql).bind(&self.slot).fetch_all(world.pool()).await.expect("decode");
        let mut decoded = Vec::new();
        let mut open: Option<Decoded> = None;
        for message in &messages {
            match message[0] {
                b'B' => {
                    let xid = u32::from_be_bytes(message[17..21].try_into().expect("4 bytes"));
                    open =
                        Some(Decoded { commit_lsn: lsn(&message[1..9]), end_lsn: Lsn::ZERO, xid, rows: 0 });
                }
                b'I' | b'U' | b'D' => open.as_mut().expect("begun").rows += 1,
                b'C' => {
                    let mut transaction = open.take().expect("begun");
                    assert_eq!(lsn(&message[2..10]), transaction.commit_lsn);
                    transaction.end_lsn = lsn(&message[10..18]);
                    decoded.push(transaction);
                }
                _ => {}
            }
        }
        decoded
    }

    /// What was decoded is what was recorded: each transaction once, none besides, each with all of its rows and effects.
    pub async fn assert_recorded(&self, world: &World) -> Vec<Decoded> {
        let decoded = self.transactions(world).await;
        let records: Vec<(String, String, i64, i64)> = sqlx::query_as(
            "select t.commit_lsn::text, t.end_lsn::text, t.xid, t.event_count from tidegate.source_transaction t
             where t.commit_lsn >= $1::pg_lsn order by t.generation, t.commit_lsn",
        )
        .bind(self.from.to_string())
        .fetch_all(world.pool())
        .await
        .expect("records");
        let expected: Vec<_> = decoded
            .iter()
            .map(|t| (t.commit_lsn.to_string(), t.end_lsn.to_string(), i64::from(t.xid), t.rows))
            .collect();
        assert_eq!(records, expected, "one record for each transaction, in commit order");
        let torn = "select count(*) from tidegate.source_transaction t where effect_count <> (select count(*)
            from tidegate.effect e where e.generation = t.generation and e.commit_lsn = t.commit_lsn)";
        assert_eq!(world.scalar::<i64>(torn).await, 0, "each with all of its effects");
        decoded
    }
}

fn lsn(bytes: &[u8]) -> Lsn {
    Lsn(u64::from_be_bytes(bytes.try_into().expect("8 bytes")))
}
