//! First arrow. Streams pgoutput from one slot, from an explicit position (A9), and reports to the server only what
//! [`acknowledge`](crate::acknowledge) allows.
//!
//! A task of its own owns the connection: it hands events to the loop through a queue bounded in bytes, and status updates go out
//! from there whatever the loop is busy with, so a slow apply never runs into `wal_sender_timeout` (OP-06). No liveness rule of
//! ours watches a silent server: filtered WAL is silent rightly, TCP and the heartbeat's own connection notice a dead one.

use crate::acknowledge::AckPosition;
use crate::config::Limits;
use crate::endpoint::Endpoint;
use crate::error::Doing;
use crate::failpoints::fail_point;
use crate::failure::{Disposition, Fault};
use crate::settings::{self, Purpose, application_name};
use crate::{CaptureError, Refusal};
use bytes::Bytes;
use pgwire_replication::{ReplicationClient, ReplicationEvent};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tidegate_model::Lsn;
use tidegate_stream::decode::{Begin, Commit};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

/// The one publication. Its name needs no quoting, as the client does none.
pub(crate) const PUBLICATION: &str = "tidegate";

/// At most this often a raised position is sent. The server's answer to it is read back by polling, so more is of no use.
const STATUS_INTERVAL: Duration = Duration::from_millis(200);
/// A status update is sent at least this often, also without news: a sixth of the default `wal_sender_timeout`.
const IDLE_STATUS_INTERVAL: Duration = Duration::from_secs(10);
/// Events between the client's task and ours. Small: the byte bound is ours, theirs counts events of any size.
const CLIENT_EVENTS_MAX: usize = 64;
/// Events between our task and the loop, besides the byte bound.
const QUEUE_EVENTS_MAX: usize = 8192;
/// What an event costs in the queue besides its data.
const EVENT_OVERHEAD_BYTES: usize = 96;

/// What arrives, in stream order.
#[derive(Debug)]
pub(crate) enum SourceEvent {
    Begin(Begin),
    Commit(Commit),
    /// The data of one XLogData frame: relation metadata, a row, a truncate.
    Frame(Bytes),
    Message {
        transactional: bool,
        prefix: String,
        content: Bytes,
    },
    /// The server's end position, when everything before it has been sent (A3).
    KeepAlive(Lsn),
}

impl SourceEvent {
    fn bytes(&self) -> usize {
        EVENT_OVERHEAD_BYTES
            + match self {
                SourceEvent::Frame(data) => data.len(),
                SourceEvent::Message { prefix, content, .. } => prefix.len() + content.len(),
                _ => 0,
            }
    }
}

/// A server as a replication connection sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) system_identifier: String,
    pub(crate) timeline: i32,
    /// Flushed WAL: nothing may start, advance or be acknowledged beyond (A8).
    pub(crate) flush: Lsn,
}

/// The thread on which replication connections live. Computing the effects of a large transaction may keep every thread of the
/// caller's runtime busy for seconds; status updates must go out meanwhile (OP-06).
pub(crate) struct StreamThread(Option<Runtime>);

impl StreamThread {
    pub(crate) fn start() -> Result<StreamThread, CaptureError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tidegate-stream")
            .enable_all()
            .build()
            .map_err(|error| {
                CaptureError::Config(format!("a thread for the stream cannot be started: {error}"))
            })?;
        Ok(StreamThread(Some(runtime)))
    }

    fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        self.0.as_ref().map(|runtime| runtime.spawn(task))
    }
}

impl Drop for StreamThread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Waiting for it would block the caller's runtime.
            runtime.shutdown_background();
        }
    }
}

/// An authenticated replication session that has not started streaming: settings checked, server identified.
pub(crate) struct Gated {
    client: ReplicationClient,
    pub(crate) server: Server,
    pub(crate) walsender_pid: i32,
}

impl Gated {
    /// Connects. `start` is where [`start`](Self::start) will begin: the position durably acknowledged.
    pub(crate) async fn connect(
        thread: &StreamThread,
        endpoint: &Endpoint,
        worker: Uuid,
        limits: &Limits,
        slot: &str,
        start: Lsn,
    ) -> Result<Gated, CaptureError> {
        let config = endpoint
            .replication(slot)?
            .with_application_name(application_name(worker, Purpose::Stream))
            .with_options(settings::replication_options())
            .with_start_lsn(to_client(start))
            // By default the client would acknowledge the start position by itself; it is the same one, said by us.
            .with_ack_lsn(to_client(start))
            .with_status_interval(STATUS_INTERVAL)
            .with_wakeup_interval(IDLE_STATUS_INTERVAL)
            .with_buffer_size(CLIENT_EVENTS_MAX)
            .with_max_message_size(limits.message_bytes_max);
        // The client starts its own task where it is connected.
        let connecting = thread.spawn(ReplicationClient::connect_gated(config)).ok_or(ENDED_HERE)?;
        let connected = connecting.await.map_err(|_| ENDED_HERE)?;
        let mut client = connected.doing("connect for replication")?;
        let identity = client.identify_system().await.map_err(refuse_pooler)?;
        settings::check_replication(&mut client).await?;
        let rows =
            client.simple_query("select pg_backend_pid()").await.doing("ask for the walsender's pid")?;
        let walsender_pid = text(&rows, 0)
            .and_then(|pid| pid.parse().ok())
            .ok_or(Refusal::Inconsistent("the walsender has no process id"))?;
        let server = Server {
            system_identifier: identity.system_id,
            timeline: i32::try_from(identity.timeline).unwrap_or(i32::MAX),
            flush: Lsn(identity.xlogpos.as_u64()),
        };
        Ok(Gated { client, server, walsender_pid })
    }

    /// Creates a permanent slot and exports its snapshot, which lives until the next command on this session (B1).
    pub(crate) async fn create_slot(&mut self, slot: &str) -> Result<CreatedSlot, CaptureError> {
        let rows = self
            .client
            .simple_query(&format!("CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput (SNAPSHOT 'export')"))
            .await
            .doing("create the candidate slot")?;
        let consistent = text(&rows, 1).and_then(|text| text.parse().ok());
        match (consistent, text(&rows, 2)) {
            (Some(consistent_lsn), Some(snapshot)) => Ok(CreatedSlot { consistent_lsn, snapshot }),
            _ => {
                Err(Refusal::Inconsistent("the server answered without a consistent point and a snapshot")
                    .into())
            }
        }
    }

    /// Ends the session without streaming; an exported snapshot can no longer be imported.
    pub(crate) fn end(self) {}

    /// Starts streaming and waits until the server has accepted.
    pub(crate) async fn start(self, thread: &StreamThread, limits: &Limits) -> Result<Source, CaptureError> {
        let Gated { mut client, .. } = self;
        client.start().await.doing("start streaming")?;
        client.wait_started().await.doing("start streaming")?;
        fail_point!(STREAM_STARTED);
        let (queue, events) = mpsc::channel(QUEUE_EVENTS_MAX);
        let (report, reported) = watch::channel(Lsn::ZERO);
        let room = Arc::new(Semaphore::new(limits.receive_queue_bytes_max));
        let pump =
            Pump { client, queue, reported, room: room.clone(), room_bytes: limits.receive_queue_bytes_max };
        let task = thread.spawn(pump.run()).ok_or(ENDED_HERE)?;
        Ok(Source { events, report, room, task, ended: None })
    }
}

/// What the creation of a slot brought.
pub(crate) struct CreatedSlot {
    pub(crate) consistent_lsn: Lsn,
    pub(crate) snapshot: String,
}

/// A running stream. Dropping it closes the connection.
pub(crate) struct Source {
    events: mpsc::Receiver<Result<(SourceEvent, usize), Fault>>,
    report: watch::Sender<Lsn>,
    room: Arc<Semaphore>,
    task: JoinHandle<()>,
    ended: Option<Fault>,
}

impl Source {
    /// The next event. Safe to cancel.
    pub(crate) async fn receive(&mut self) -> Result<SourceEvent, CaptureError> {
        let received = self.events.recv().await;
        self.take(received)
    }

    /// The next event, if one has arrived.
    pub(crate) fn try_receive(&mut self) -> Result<Option<SourceEvent>, CaptureError> {
        match self.events.try_recv() {
            Ok(received) => self.take(Some(received)).map(Some),
            Err(mpsc::error::TryRecvError::Empty) => Ok(None),
            Err(mpsc::error::TryRecvError::Disconnected) => self.take(None).map(Some),
        }
    }

    fn take(
        &mut self,
        received: Option<Result<(SourceEvent, usize), Fault>>,
    ) -> Result<SourceEvent, CaptureError> {
        let fault = match received {
            Some(Ok((event, bytes))) => {
                self.room.add_permits(bytes);
                return Ok(event);
            }
            Some(Err(fault)) => *self.ended.insert(fault),
            None => self.ended.unwrap_or(ENDED),
        };
        Err(CaptureError::Failed { doing: "receive from the stream".into(), fault })
    }

    /// Lets the server know. The type says that the position may be told (A5).
    pub(crate) fn report(&self, position: &AckPosition) {
        self.report.send_if_modified(|reported| {
            let newer = position.lsn() > *reported;
            if newer {
                *reported = position.lsn();
            }
            newer
        });
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.task.abort();
    }
}

const ENDED: Fault = Fault::ours(Disposition::Transient, "the server ended the stream");

const ENDED_HERE: Refusal = Refusal::Inconsistent("the stream's thread has ended");

struct Pump {
    client: ReplicationClient,
    queue: mpsc::Sender<Result<(SourceEvent, usize), Fault>>,
    reported: watch::Receiver<Lsn>,
    room: Arc<Semaphore>,
    room_bytes: usize,
}

impl Pump {
    async fn run(mut self) {
        loop {
            let event = tokio::select! {
                biased;
                changed = self.reported.changed() => match changed {
                    Ok(()) => {
                        self.tell();
                        continue;
                    }
                    // The loop is gone.
                    Err(_) => return,
                },
                event = self.client.recv() => event,
            };
            let item = match event {
                Ok(Some(event)) => match convert(event) {
                    Some(event) => {
                        let bytes = event.bytes().min(self.room_bytes);
                        if self.wait_for_room(bytes).await.is_err() {
                            return;
                        }
                        Ok((event, bytes))
                    }
                    None => continue,
                },
                Ok(None) => Err(ENDED),
                Err(error) => Err(Fault::from(&error)),
            };
            let last = item.is_err();
            if self.queue.send(item).await.is_err() || last {
                return;
            }
        }
    }

    /// Takes `bytes` from the queue's budget, telling the server news meanwhile.
    async fn wait_for_room(&mut self, bytes: usize) -> Result<(), ()> {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        loop {
            tokio::select! {
                biased;
                permit = self.room.acquire_many(permits) => {
                    permit.map_err(|_| ())?.forget();
                    return Ok(());
                }
                changed = self.reported.changed() => {
                    changed.map_err(|_| ())?;
                    self.client.update_applied_lsn(to_client(*self.reported.borrow_and_update()));
                }
            }
        }
    }

    fn tell(&mut self) {
        let lsn = *self.reported.borrow_and_update();
        self.client.update_applied_lsn(to_client(lsn));
    }
}

fn convert(event: ReplicationEvent) -> Option<SourceEvent> {
    Some(match event {
        ReplicationEvent::Begin { final_lsn, xid, commit_time_micros } => SourceEvent::Begin(Begin {
            commit_lsn: Lsn(final_lsn.as_u64()),
            committed_at_pg_micros: commit_time_micros,
            xid,
        }),
        ReplicationEvent::Commit { lsn, end_lsn, .. } => {
            SourceEvent::Commit(Commit { commit_lsn: Lsn(lsn.as_u64()), end_lsn: Lsn(end_lsn.as_u64()) })
        }
        ReplicationEvent::XLogData { data, .. } => SourceEvent::Frame(data),
        ReplicationEvent::Message { transactional, prefix, content, .. } => {
            SourceEvent::Message { transactional, prefix, content }
        }
        ReplicationEvent::KeepAlive { wal_end, .. } => SourceEvent::KeepAlive(Lsn(wal_end.as_u64())),
        // Only with a stop position, which we never give.
        ReplicationEvent::StoppedAt { .. } => return None,
    })
}

fn to_client(lsn: Lsn) -> pgwire_replication::Lsn {
    pgwire_replication::Lsn::from_u64(lsn.0)
}

fn text(rows: &[pgwire_replication::QueryRow], column: usize) -> Option<String> {
    let value = rows.first()?.get(column)?.as_ref()?;
    std::str::from_utf8(value).ok().map(str::to_owned)
}

/// A pooler answers a replication start-up, or IDENTIFY_SYSTEM, with an error that PostgreSQL never gives here.
fn refuse_pooler(error: pgwire_replication::PgWireError) -> CaptureError {
    match Fault::from(&error) {
        fault if fault.code.is_some_and(|code| matches!(code.as_str(), "08P01" | "42601")) => {
            Refusal::Pooler.into()
        }
        fault => CaptureError::Failed { doing: "identify the server".into(), fault },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgwire_replication::PgWireError;

    #[test]
    fn a_pooler_is_refused_by_name_and_a_server_that_starts_up_is_not() {
        let pooler =
            PgWireError::Server("unsupported startup parameter: replication (SQLSTATE 08P01)".into());
        assert!(matches!(refuse_pooler(pooler), CaptureError::Refused(Refusal::Pooler)));
        let starting = PgWireError::Server("the database system is starting up (SQLSTATE 57P03)".into());
        assert!(matches!(refuse_pooler(starting), CaptureError::Failed { .. }));
    }
}
