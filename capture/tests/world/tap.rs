//! A wire tap between worker and server: what passes on the replication connection, message by message, and a hand on the valve.
//! It reads the protocol on its own, so that what it says does not depend on the client that is being watched.

use super::{World, within};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tidegate_model::Lsn;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What has passed, in the order in which it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passed {
    /// START_REPLICATION: the slot, and the explicit position.
    Start { slot: String, at: Lsn },
    /// A server's keepalive: its end of WAL, and whether it wants an answer.
    KeepAlive { end: Lsn, asks: bool },
    /// A message of the stream: its kind.
    Data(u8),
    /// The worker's status update.
    Status { write: Lsn, flush: Lsn, apply: Lsn },
}

/// What is held back on the replication connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Everything that the server sends.
    pub stream: bool,
    /// Everything that the worker sends once it streams.
    pub status: bool,
}

#[derive(Default)]
struct Shared {
    passed: Mutex<Vec<Passed>>,
    /// The stream is held behind the next message of this kind.
    stop_after: Mutex<Option<u8>>,
    /// Frames of the tap's own, for a stream that is held.
    inject: Mutex<VecDeque<Vec<u8>>>,
}

pub struct Tap {
    url: String,
    shared: Arc<Shared>,
    count: watch::Sender<usize>,
    held: watch::Sender<Held>,
    task: JoinHandle<()>,
}

impl Tap {
    pub async fn before(world: &World) -> Tap {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = world.server.port();
        let url = world.db.url().replace(&format!(":{server}/"), &format!(":{port}/"));
        let (shared, count, held) =
            (Arc::<Shared>::default(), watch::Sender::new(0), watch::Sender::default());
        let wires = Wires { server, shared: shared.clone(), count: count.clone(), held: held.clone() };
        Tap { url, shared, count, held, task: tokio::spawn(wires.run(listener)) }
    }

    /// Where a worker must connect.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    pub fn passed(&self) -> Vec<Passed> {
        self.shared.passed.lock().expect("unpoisoned").clone()
    }

    /// Every position that the server was told, in order, each once.
    pub fn told(&self) -> Vec<Lsn> {
        let mut told: Vec<Lsn> = Vec::new();
        for passed in self.passed() {
            if let Passed::Status { write, flush, apply } = passed {
                // One position for all three: what is not durable is not said to be written either.
                assert_eq!((write, apply), (flush, flush));
                if told.last() != Some(&flush) {
                    told.push(flush);
                }
            }
        }
        told
    }

    pub fn hold(&self, held: Held) {
        self.held.send_replace(held);
    }

    /// Cuts every wire.
    pub fn cut(&mut self) {
        self.task.abort();
    }

    /// Nothing is held back any more.
    pub fn resume(&self) {
        self.hold(Held::default());
    }

    /// Waits until what has passed satisfies this.
    pub async fn until(&self, what: &str, satisfied: impl Fn(&[Passed]) -> bool) {
        let mut count = self.count.subscribe();
        within(what, async {
            while !satisfied(&self.passed()) {
                count.changed().await.expect("open");
            }
        })
        .await;
    }

    /// Holds the stream behind the next message of this kind.
    pub fn stop_after(&self, kind: u8) {
        *self.shared.stop_after.lock().expect("unpoisoned") = Some(kind);
    }

    /// Sends a keepalive of the tap's own, which wants an answer, on a stream that is held.
    pub fn send_keepalive(&self, end: Lsn) {
        let mut payload = vec![b'k'];
        payload.extend_from_slice(&end.0.to_be_bytes());
        payload.extend_from_slice(&[0; 8]);
        payload.push(1);
        let mut frame = vec![b'd'];
        frame.extend_from_slice(&(payload.len() as u32 + 4).to_be_bytes());
        frame.extend_from_slice(&payload);
        self.shared.inject.lock().expect("unpoisoned").push_back(frame);
        // Whoever holds looks again.
        self.held.send_modify(|_| {});
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone)]
struct Wires {
    server: u16,
    shared: Arc<Shared>,
    count: watch::Sender<usize>,
    held: watch::Sender<Held>,
}

impl Wires {
    async fn run(self, listener: TcpListener) {
        // Dropping the set cuts every wire.
        let mut wires = tokio::task::JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            // An end, orderly or not, is the two parties' own matter.
            let wires_of_one = self.clone();
            wires.spawn(async move { drop(wires_of_one.connect(client).await) });
        }
    }

    async fn connect(self, mut client: TcpStream) -> std::io::Result<()> {
        let mut server = TcpStream::connect(("127.0.0.1", self.server)).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        /// Code of a request for TLS in place of a protocol version.
        const SSL_REQUEST: [u8; 4] = 80_877_103_u32.to_be_bytes();
        loop {
            let mut startup = vec![0; 4];
            client.read_exact(&mut startup).await?;
            let length = u32::from_be_bytes(startup[..4].try_into().expect("4 bytes")) as usize;
            startup.resize(length, 0);
            client.read_exact(&mut startup[4..]).await?;
            server.write_all(&startup).await?;
            if startup[4..8] != SSL_REQUEST {
                let replication = startup.windows(12).any(|part| part == b"replication\0");
                if !replication {
                    return copy_bidirectional(&mut client, &mut server).await.map(drop);
                }
                break;
            }
            let mut refusal = [0];
            server.read_exact(&mut refusal).await?;
            client.write_all(&refusal).await?;
        }
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        // Whichever ends first ends the other: both halves drop.
        tokio::select! {
            ended = self.downstream(from_server, to_client) => ended,
            ended = self.upstream(from_client, to_server) => ended,
        }
    }

    fn note(&self, passed: Passed) {
        self.shared.passed.lock().expect("unpoisoned").push(passed);
        self.count.send_modify(|count| *count += 1);
    }

    async fn open(&self, held: impl Fn(&Held) -> bool) {
        let _ = self.held.subscribe().wait_for(|now| !held(now)).await;
    }

    async fn downstream(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> std::io::Result<()> {
        let mut held = self.held.subscribe();
        loop {
            let message = read(&mut from).await?;
            while held.borrow_and_update().stream {
                let injected = self.shared.inject.lock().expect("unpoisoned").pop_front();
                match injected {
                    Some(frame) => {
                        to.write_all(&frame).await?;
                        self.note(Passed::KeepAlive { end: lsn(&frame[6..]), asks: true });
                    }
                    None if held.changed().await.is_err() => return Ok(()),
                    None => {}
                }
            }
            to.write_all(&message).await?;
            let (b'd', payload) = (message[0], &message[5..]) else { continue };
            match payload[0] {
                b'k' => self.note(Passed::KeepAlive { end: lsn(&payload[1..]), asks: payload[17] == 1 }),
                _ => {
                    let stop =
                        self.shared.stop_after.lock().expect("unpoisoned").take_if(|k| *k == payload[25]);
                    if stop.is_some() {
                        self.held.send_modify(|held| held.stream = true);
                    }
                    self.note(Passed::Data(payload[25]));
                }
            }
        }
    }

    async fn upstream(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> std::io::Result<()> {
        loop {
            let message = read(&mut from).await?;
            let payload = &message[5..];
            match (message[0], payload.first()) {
                (b'd', Some(b'r')) => {
                    self.open(|held| held.status).await;
                    // Noted before the server can act on it.
                    self.note(Passed::Status {
                        write: lsn(&payload[1..]),
                        flush: lsn(&payload[9..]),
                        apply: lsn(&payload[17..]),
                    });
                }
                (b'Q', _) => {
                    let text = String::from_utf8_lossy(payload);
                    let words: Vec<&str> = text.split_whitespace().collect();
                    if let ["START_REPLICATION", "SLOT", slot, "LOGICAL", at, ..] = words[..] {
                        let slot = slot.trim_matches('"').to_owned();
                        self.note(Passed::Start { slot, at: at.parse().expect("a position") });
                    }
                }
                _ => {}
            }
            to.write_all(&message).await?;
        }
    }
}

/// One message: its kind, its length, its content.
async fn read(from: &mut OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let mut message = vec![0; 5];
    from.read_exact(&mut message).await?;
    let length = u32::from_be_bytes(message[1..5].try_into().expect("4 bytes")) as usize;
    message.resize(1 + length, 0);
    from.read_exact(&mut message[5..]).await?;
    Ok(message)
}

fn lsn(bytes: &[u8]) -> Lsn {
    Lsn(u64::from_be_bytes(bytes[..8].try_into().expect("8 bytes")))
}
