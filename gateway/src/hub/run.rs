//! The hub's awaits and their order: open the lineage, then read, take, answer, again and again; when the lineage ends, tell
//! everybody and open the next.

use sqlx::PgPool;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_log::{
    Bounds, ClientKey, EffectBatch, EffectLog, EffectLogError, Subscription, TailPosition, WakeListener,
};
use tidegate_model::{Lsn, RegistryGeneration};
use tokio::sync::{mpsc, watch};

use super::{Core, HubBounds, KeyError, KeyRing, Mailbox, MemberId, PageBounds, Press, Request};
use crate::catch_up::{CatchUpBounds, CatchUps};
use crate::failpoints;
use crate::grants::StaticGrants;
use crate::rebuild::{RebuildBounds, Rebuilds};
use crate::registry::{Registries, RegistryError};

/// How the hub reads and what it keeps.
#[derive(Clone, Copy, Debug)]
pub struct HubConfig {
    /// Bounds of one read.
    pub read: Bounds,
    /// Bounds of one page.
    pub page: PageBounds,
    /// Bounds of memory.
    pub memory: HubBounds,
    /// Bounds of what sessions that catch up share.
    pub catch_up: CatchUpBounds,
    /// Bounds of rebuilds.
    pub rebuild: RebuildBounds,
    /// Longest wait for a wake before looking anyway.
    pub rescan: Duration,
    /// Most pending mutations that one read brings; beyond it, all sessions wait (V2).
    pub pending_max: u32,
    /// Batches that one session may lag behind before it is left to catch up by itself.
    pub mailbox_batches_max: usize,
    /// Requests of sessions that may wait for the hub.
    pub requests_max: usize,
}

/// What everything about one lineage shares: positions, cursors, windows and caches are only good within it.
#[derive(Debug)]
pub struct Epoch {
    /// The log, as the tail reads it.
    log: Arc<EffectLog>,
    /// The log, as sessions read it: on connections of their own.
    pub reader: EffectLog,
    /// Stretches of the log that sessions share.
    pub catch_ups: CatchUps,
    /// Rebuild pages.
    pub rebuilds: Rebuilds,
    /// What makes its pages.
    pub press: Arc<Press>,
    /// Registry generations read so far.
    pub registries: Arc<Registries>,
    requests: mpsc::Sender<Request>,
    mailbox_batches_max: usize,
    /// Of all epochs: members of different ones never share a number.
    next_member: Arc<AtomicU64>,
    /// Registry generation in force, as the tail saw it last.
    registry: watch::Receiver<RegistryGeneration>,
}

/// A session's place at the hub. Dropping it leaves.
#[derive(Debug)]
pub struct Seat {
    /// Its id.
    pub member: MemberId,
    /// Where its messages arrive.
    pub mailbox: Arc<Mailbox>,
    requests: mpsc::Sender<Request>,
}

impl Epoch {
    /// Takes a seat; the first message is `Registered`. `None`: the lineage has ended.
    pub async fn register(&self, client: ClientKey) -> Option<Seat> {
        let member = MemberId(self.next_member.fetch_add(1, Ordering::Relaxed));
        let mailbox = Arc::new(Mailbox::new(self.mailbox_batches_max));
        let seat = Seat { member, mailbox: mailbox.clone(), requests: self.requests.clone() };
        let sent = self.requests.send(Request::Register { member, client, mailbox }).await;
        sent.ok().map(|()| seat)
    }

    /// The history that it is.
    pub fn lineage(&self) -> &tidegate_log::Lineage {
        self.log.lineage()
    }

    /// Registry generation in force.
    pub fn registry(&self) -> RegistryGeneration {
        *self.registry.borrow()
    }
}

impl Seat {
    /// Sends a request. The hub never waits for a session, so this wait is short. A request to an ended lineage goes nowhere: the
    /// mailbox says so.
    pub async fn request(&self, request: Request) {
        let _ = self.requests.send(request).await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let leave = Request::Leave { member: self.member };
        if let Err(mpsc::error::TrySendError::Full(leave)) = self.requests.try_send(leave) {
            let requests = self.requests.clone();
            tokio::spawn(async move {
                let _ = requests.send(leave).await;
            });
        }
    }
}

/// The running hub.
#[derive(Clone, Debug)]
pub struct Hub {
    epoch: watch::Receiver<Option<Arc<Epoch>>>,
}

impl Hub {
    /// A hub, and the future that is its running. `tail` serves the tail and the listener, two connections; `reads` sessions.
    pub fn new(tail: PgPool, reads: PgPool, config: HubConfig) -> (Hub, impl Future<Output = ()> + Send) {
        let (sender, epoch) = watch::channel(None);
        (Hub { epoch }, run(Pools { tail, reads }, config, sender))
    }

    /// The lineage that is followed now; `None`: the database has no stream yet, or is not reachable.
    pub fn epoch(&self) -> Option<Arc<Epoch>> {
        self.epoch.borrow().clone()
    }

    /// Waits until a lineage is followed.
    pub async fn followed(&mut self) {
        let _ = self.epoch.wait_for(Option::is_some).await;
    }
}

#[derive(Debug, thiserror::Error)]
enum HubError {
    #[error("{0}")]
    Log(#[from] EffectLogError),
    #[error("{0}")]
    Registry(#[from] RegistryError),
    #[error("{0}")]
    Keys(#[from] KeyError),
    #[error("read the static grants: {0}")]
    Grants(sqlx::Error),
    #[error("read the generation's beginning: {0}")]
    Beginning(#[from] sqlx::Error),
}

/// How often the cursor keys are read again.
const KEYS_AGE_MAX: Duration = Duration::from_secs(10);

/// Pause after the first failure in a row; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

struct Pools {
    tail: PgPool,
    reads: PgPool,
}

async fn run(pools: Pools, config: HubConfig, sender: watch::Sender<Option<Arc<Epoch>>>) {
    let next_member = Arc::new(AtomicU64::new(1));
    let mut pause = PAUSE_MIN;
    loop {
        match open(&pools, &config, &next_member).await {
            Ok((epoch, core, requests, registry)) => {
                pause = PAUSE_MIN;
                tracing::info!(
                    generation = epoch.log.lineage().generation.0,
                    timeline = epoch.log.lineage().server.timeline,
                    "following the stream"
                );
                let listener = WakeListener::new(pools.tail.clone(), epoch.log.clone()).run();
                sender.send_replace(Some(epoch.clone()));
                let why = tokio::select! {
                    why = follow(&epoch, core, requests, registry, &config) => why,
                    () = listener => continue,
                };
                tracing::warn!(why, "the stream's history was left");
                sender.send_replace(None);
            }
            Err(HubError::Log(EffectLogError::NoGeneration)) => {
                tracing::debug!("the stream has not been started yet");
                tokio::time::sleep(PAUSE_MIN * 4).await;
            }
            Err(error) => {
                tracing::warn!(%error, retry_ms = pause.as_millis() as u64, "open the stream");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

type Opened = (Arc<Epoch>, Core, mpsc::Receiver<Request>, watch::Sender<RegistryGeneration>);

async fn open(pools: &Pools, config: &HubConfig, next_member: &Arc<AtomicU64>) -> Result<Opened, HubError> {
    let pool = &pools.tail;
    let log = Arc::new(EffectLog::open(pool.clone(), config.pending_max).await?);
    let keys = KeyRing::load(pool).await?;
    // Nothing of the lineage was committed before its slot's consistent point.
    let base: String =
        sqlx::query_scalar("select consistent_lsn::text from tidegate.stream_generation where id = $1")
            .bind(log.lineage().generation.0)
            .fetch_one(pool)
            .await?;
    let registries = Arc::new(Registries::default());
    let registry = registries.load(pool, log.registry()).await?;
    let press = Arc::new(Press {
        lineage: *log.lineage(),
        keys,
        bounds: config.page,
        base: base.parse().unwrap_or(Lsn::ZERO),
    });
    let (requests, receiver) = mpsc::channel(config.requests_max);
    let (registry_sender, registry_seen) = watch::channel(registry.generation);
    let rules =
        StaticGrants::load(pool, log.lineage().generation, &registry).await.map_err(HubError::Grants)?;
    let core = Core::new(press.clone(), config.memory, rules, log.opened_at());
    let epoch = Arc::new(Epoch {
        reader: log.with_pool(pools.reads.clone()),
        catch_ups: CatchUps::new(config.catch_up),
        rebuilds: Rebuilds::new(pools.reads.clone(), press.clone(), registries.clone(), config.rebuild),
        log,
        press,
        registries,
        requests,
        mailbox_batches_max: config.mailbox_batches_max,
        next_member: next_member.clone(),
        registry: registry_seen,
    });
    Ok((epoch, core, receiver, registry_sender))
}

/// Follows one lineage until it ends; gives the reason.
async fn follow(
    epoch: &Epoch,
    mut core: Core,
    mut requests: mpsc::Receiver<Request>,
    registry: watch::Sender<RegistryGeneration>,
    config: &HubConfig,
) -> &'static str {
    let from: TailPosition = epoch.log.opened_at();
    let mut tail = Subscription::new(epoch.log.clone(), from, config.read, config.rescan);
    let mut pause = PAUSE_MIN;
    let mut urgent = false;
    let mut keys_at = Instant::now();
    loop {
        if keys_at.elapsed() > KEYS_AGE_MAX {
            keys_at = Instant::now();
            if let Err(error) = epoch.press.keys.reload(epoch.log.pool()).await {
                tracing::warn!(%error, "keep the cursor keys as they were");
            }
        }
        while !urgent {
            tokio::select! {
                biased;
                Some(request) = requests.recv() => urgent |= core.request(request),
                () = tail.ready() => break,
            }
        }
        while let Ok(request) = requests.try_recv() {
            core.request(request);
        }
        urgent = false;
        failpoints::reach(failpoints::TAIL_READ, "").await;
        epoch.log.set_interest(core.begin_read());
        let read = {
            let mut scan = pin!(tail.scan());
            loop {
                tokio::select! {
                    biased;
                    read = &mut scan => break read,
                    Some(request) = requests.recv() => urgent |= core.request(request),
                }
            }
        };
        match read {
            Ok(batch) => {
                pause = PAUSE_MIN;
                let changed = prepare(epoch, &mut core, &batch).await;
                registry.send_if_modified(|seen| {
                    std::mem::replace(seen, batch.anchor.registry) != batch.anchor.registry
                });
                failpoints::reach(failpoints::TAIL_PUBLISH, "").await;
                core.take(batch, changed);
                observe(&core, &epoch.log);
                // A part of a large transaction tells nothing to whoever waits.
                urgent |= core.awaited();
            }
            Err(EffectLogError::LineageChanged(what)) => {
                core.end(what);
                return what;
            }
            Err(EffectLogError::NoGeneration) => {
                core.end("stream");
                return "stream";
            }
            Err(error) => {
                tracing::warn!(%error, retry_ms = pause.as_millis() as u64, "read the tail");
                let wake = tokio::time::Instant::now() + pause;
                pause = (pause * 2).min(PAUSE_MAX);
                loop {
                    tokio::select! {
                        () = tokio::time::sleep_until(wake) => break,
                        Some(request) = requests.recv() => { core.request(request); }
                    }
                }
                urgent = true;
            }
        }
    }
}

/// What an operator sees of the hub.
fn observe(core: &Core, log: &EffectLog) {
    let (feeds, window_bytes) = core.feeds();
    metrics::gauge!("tidegate_hub_sessions").set(core.members() as f64);
    metrics::gauge!("tidegate_hub_feeds").set(feeds as f64);
    metrics::gauge!("tidegate_hub_window_bytes").set(window_bytes as f64);
    metrics::counter!("tidegate_tail_reads_total").absolute(log.reads());
}

/// Sees to it that every registry generation that the batch needs has been read. True if the one in force has changed.
async fn prepare(epoch: &Epoch, core: &mut Core, batch: &EffectBatch) -> bool {
    let in_force = batch.anchor.registry;
    let mut needed: Vec<_> = batch.effects.iter().map(|effect| effect.schema_version).collect();
    needed.push(in_force);
    needed.dedup();
    let mut pause = PAUSE_MIN;
    for sv in needed {
        // The batch has been read and must not be lost: nothing else is worth doing before this succeeds.
        while let Err(error) = epoch.registries.load(epoch.log.pool(), sv).await {
            tracing::warn!(%error, "load a registry generation");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
    let changed = in_force != core.registry();
    if changed && let Some(registry) = epoch.registries.get(in_force) {
        pause = PAUSE_MIN;
        let rules = loop {
            match StaticGrants::load(epoch.log.pool(), epoch.lineage().generation, &registry).await {
                Ok(rules) => break rules,
                Err(error) => tracing::warn!(%error, "load the static grants"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        };
        core.set_rules(rules);
    }
    changed
}
