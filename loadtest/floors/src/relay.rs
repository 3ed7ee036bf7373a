//! The floor of fan-out, an unsafe relay: our source and our decoder straight to one socket. Nothing is materialized, nothing
//! is acknowledged, nothing survives a restart. What it costs is the least that a committed row can take on its way.

use anyhow::{Context, bail};
use bytes::Bytes;
use pgwire_replication::{ReplicationClient, ReplicationConfig, ReplicationEvent};
use std::net::SocketAddr;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Where the database is.
#[derive(Clone)]
pub struct Database {
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Role with the REPLICATION attribute.
    pub user: String,
    /// Its password.
    pub password: String,
    /// Database name.
    pub name: String,
}

/// A running relay. Dropping it ends its connection and with it its temporary slot.
pub struct Relay {
    /// Where its one client connects. Each row change arrives, after its commit, as a four-byte big-endian length and the
    /// pgoutput message.
    pub address: SocketAddr,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Relay {
    /// Creates a temporary slot on `publication`, from now on, and serves the first client that connects.
    pub async fn start(database: &Database, publication: &str) -> anyhow::Result<Relay> {
        const SLOT: &str = "tidegate_floor_relay";
        let config = ReplicationConfig::new(
            &database.host,
            &database.user,
            &database.password,
            &database.name,
            SLOT,
            publication,
        )
        .with_port(database.port);
        let mut source =
            ReplicationClient::connect_gated(config).await.context("connect the relay's source")?;
        source
            .simple_query(&format!(
                "CREATE_REPLICATION_SLOT {SLOT} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing')"
            ))
            .await
            .context("create the relay's slot")?;
        source.start().await.context("start the relay's source")?;
        source.wait_started().await.context("start the relay's source")?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("listen for the relay's client")?;
        let address = listener.local_addr().context("listen for the relay's client")?;
        let task = tokio::spawn(async move {
            let (socket, _) = listener.accept().await.context("accept the relay's client")?;
            socket.set_nodelay(true).context("set up the relay's socket")?;
            forward(source, socket).await
        });
        Ok(Relay { address, task })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sends the row changes of each transaction when its commit has arrived, in one write.
async fn forward(mut source: ReplicationClient, mut socket: TcpStream) -> anyhow::Result<()> {
    let mut pending: Vec<u8> = Vec::new();
    loop {
        match source.recv().await.context("read the relay's source")? {
            Some(ReplicationEvent::Begin { .. }) => pending.clear(),
            Some(ReplicationEvent::XLogData { data, .. }) => keep_row(&mut pending, &data)?,
            Some(ReplicationEvent::Commit { end_lsn, .. }) => {
                source.update_applied_lsn(end_lsn);
                socket.write_all(&pending).await.context("write to the relay's client")?;
                pending.clear();
            }
            Some(_) => {}
            None => bail!("the relay's source ended"),
        }
    }
}

fn keep_row(pending: &mut Vec<u8>, data: &Bytes) -> anyhow::Result<()> {
    if let tidegate_stream::decode::Message::Row(_) = tidegate_stream::decode::decode(data)? {
        pending.extend_from_slice(&(data.len() as u32).to_be_bytes());
        pending.extend_from_slice(data);
    }
    Ok(())
}

/// Reads the text of column `index` of a relayed row change, if it has one.
pub fn column_text(message: &[u8], index: usize) -> Option<&str> {
    use tidegate_stream::decode::{Message, Value, decode};
    let Ok(Message::Row(row)) = decode(message) else { return None };
    match row.new?.values().nth(index)? {
        Value::Text(text) => std::str::from_utf8(text).ok(),
        Value::Null | Value::Unchanged => None,
    }
}
