//! What a gateway must be told. Every limit is finite and carries its unit (H1).

use std::net::SocketAddr;
use std::time::Duration;
use tidegate_log::Bounds;
use tidegate_protocol::SessionLimits;

use crate::auth::AuthConfig;
use crate::catch_up::CatchUpBounds;
use crate::hub::{HubBounds, HubConfig, PageBounds};
use crate::push::PushConfig;
use crate::readiness::ReadinessConfig;
use crate::rebuild::RebuildBounds;
use crate::session::SessionBounds;

/// Configuration of one gateway.
#[derive(Clone)]
pub struct Config {
    /// Connection string of the one database (`postgres://…`), for a role that may read schema `tidegate` and listen. Goes
    /// straight to the server, not through a transaction pooler. Never logged.
    pub database_url: String,
    /// Where to listen.
    pub listen: SocketAddr,
    /// How tokens are judged.
    pub auth: AuthConfig,
    /// How pushes run; `None`: this gateway takes none.
    pub push: Option<PushConfig>,
    /// How readiness is judged.
    pub readiness: ReadinessConfig,
    /// Limits.
    pub limits: Limits,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The connection string may hold a password.
        f.debug_struct("Config")
            .field("listen", &self.listen)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Defaults for this database. `database_name`: the one that is meant (H2).
    pub fn new(
        database_url: impl Into<String>,
        database_name: impl Into<String>,
        auth: AuthConfig,
    ) -> Config {
        Config {
            database_url: database_url.into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 8787)),
            auth,
            push: None,
            readiness: ReadinessConfig::new(database_name),
            limits: Limits::default(),
        }
    }
}

/// Limits of a gateway.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sockets at the same time; more are answered 503 before the upgrade.
    pub sockets_max: usize,
    /// Sockets of one subject; anonymous ones count together but are not limited by this.
    pub subject_sockets_max: usize,
    /// Sessions that may begin at the same time: a storm of reconnects queues here, before anything expensive.
    pub beginning_max: usize,
    /// Longest wait for the first frame.
    pub hello_timeout: Duration,
    /// What `welcome` tells. A client silent for twice as long is closed.
    pub heartbeat: Duration,
    /// How long a client may take to accept the bytes queued for it.
    pub send_timeout: Duration,
    /// Longest frame from a client, in bytes.
    pub frame_bytes_max: u32,
    /// Frames per second from one socket, sustained.
    pub frames_per_second: u32,
    /// Mutations per second from one socket, sustained.
    pub mutations_per_second: u32,
    /// Pushes of one socket that may wait for the one under way; the socket is not read beyond.
    pub pushes_waiting_max: usize,
    /// Scopes of one socket.
    pub scopes_max: u32,
    /// Bytes queued for one socket beyond which nothing more is read for it. One batch or page may go beyond.
    pub outbox_bytes_max: usize,
    /// Batches that one session may lag before it is left to catch up by itself.
    pub mailbox_batches_max: usize,
    /// Requests of sessions that may wait for the hub.
    pub hub_requests_max: usize,
    /// Source transactions in one tail read.
    pub read_transactions_max: u32,
    /// Effects in one tail read; a larger transaction is read in parts.
    pub read_effects_max: u32,
    /// Bytes in one tail read; a larger transaction is read in parts.
    pub read_bytes_max: u64,
    /// Effects of one page.
    pub page_effects_max: usize,
    /// Bytes of one page; a single effect may be larger.
    pub page_bytes_max: usize,
    /// Bytes that all windows of recent pages hold together.
    pub window_bytes_max: usize,
    /// Scopes that nobody subscribes to and that are followed on for those who come back.
    pub idle_feeds_max: usize,
    /// Longest wait for a wake before the tail looks anyway.
    pub rescan: Duration,
    /// Pending mutations that one tail read brings.
    pub pending_max: u32,
    /// How long a cursor may be ahead of the tail before it is refused as `cursor_ahead`.
    pub ahead_max: Duration,
    /// Told in `capture_pending`.
    pub capture_retry: Duration,
    /// Bytes of resumed stretches that are kept for others who resume from the same place.
    pub catch_up_bytes_max: usize,
    /// How long they are kept.
    pub catch_up_age_max: Duration,
    /// A resume replays at least this many effects before a rebuild may be cheaper.
    pub replay_min: u64,
    /// Rows of one rebuild page.
    pub rebuild_rows_max: u32,
    /// Bytes of one rebuild page; a single row may be larger.
    pub rebuild_bytes_max: u64,
    /// Bytes of rebuild pages that the cache holds.
    pub rebuild_cache_bytes_max: usize,
    /// How long newcomers may join a run of rebuild pages.
    pub rebuild_run_age_max: Duration,
    /// Queries of sessions (resumes, rebuilds) at the same time, and connections for them.
    pub reads_max: usize,
    /// Over how long a drain spreads the reconnects of its clients.
    pub drain_spread: Duration,
    /// How long a drain waits for sockets to close.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            sockets_max: 50_000,
            subject_sockets_max: 64,
            beginning_max: 256,
            hello_timeout: Duration::from_secs(10),
            heartbeat: Duration::from_secs(25),
            send_timeout: Duration::from_secs(30),
            frame_bytes_max: 1 << 20,
            frames_per_second: 200,
            mutations_per_second: 500,
            pushes_waiting_max: 16,
            scopes_max: 1000,
            outbox_bytes_max: 64 << 10,
            mailbox_batches_max: 64,
            hub_requests_max: 4096,
            read_transactions_max: 1000,
            read_effects_max: 20_000,
            read_bytes_max: 4 << 20,
            page_effects_max: 2000,
            page_bytes_max: 256 << 10,
            window_bytes_max: 64 << 20,
            idle_feeds_max: 10_000,
            rescan: Duration::from_secs(1),
            pending_max: 50_000,
            ahead_max: Duration::from_secs(5),
            capture_retry: Duration::from_millis(250),
            catch_up_bytes_max: 32 << 20,
            catch_up_age_max: Duration::from_secs(10),
            replay_min: 1000,
            rebuild_rows_max: 5000,
            rebuild_bytes_max: 256 << 10,
            rebuild_cache_bytes_max: 128 << 20,
            rebuild_run_age_max: Duration::from_secs(30),
            reads_max: 8,
            drain_spread: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

impl Limits {
    pub(crate) fn hub(&self) -> HubConfig {
        HubConfig {
            read: Bounds {
                units_max: self.read_transactions_max,
                entries_max: self.read_effects_max,
                bytes_max: self.read_bytes_max,
            },
            page: PageBounds { effects_max: self.page_effects_max, bytes_max: self.page_bytes_max },
            memory: HubBounds {
                window_bytes_max: self.window_bytes_max,
                idle_feeds_max: self.idle_feeds_max,
            },
            catch_up: CatchUpBounds { bytes_max: self.catch_up_bytes_max, age_max: self.catch_up_age_max },
            rebuild: RebuildBounds {
                page_rows_max: self.rebuild_rows_max,
                page_bytes_max: self.rebuild_bytes_max,
                cache_bytes_max: self.rebuild_cache_bytes_max,
                run_age_max: self.rebuild_run_age_max,
                reads_max: self.reads_max,
            },
            rescan: self.rescan,
            pending_max: self.pending_max,
            mailbox_batches_max: self.mailbox_batches_max,
            requests_max: self.hub_requests_max,
        }
    }

    pub(crate) fn session(&self, push: Option<&PushConfig>) -> SessionBounds {
        SessionBounds {
            limits: SessionLimits {
                frame_bytes_max: self.frame_bytes_max,
                batch_mutations_max: push.map_or(0, |push| push.batch_mutations_max),
                scopes_max: self.scopes_max,
                mutations_per_second: self.mutations_per_second,
                unmaterialized_max: push.map_or(0, |push| push.unmaterialized_max),
            },
            heartbeat: self.heartbeat,
            outbox_bytes_max: self.outbox_bytes_max,
            ahead_max: self.ahead_max,
            retry: self.capture_retry,
            replay_min: self.replay_min,
        }
    }

    /// The first limit that makes no sense.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        let positive = [
            (self.sockets_max, "sockets_max"),
            (self.subject_sockets_max, "subject_sockets_max"),
            (self.beginning_max, "beginning_max"),
            (self.frame_bytes_max as usize, "frame_bytes_max"),
            (self.frames_per_second as usize, "frames_per_second"),
            (self.mutations_per_second as usize, "mutations_per_second"),
            (self.pushes_waiting_max, "pushes_waiting_max"),
            (self.scopes_max as usize, "scopes_max"),
            (self.outbox_bytes_max, "outbox_bytes_max"),
            (self.mailbox_batches_max, "mailbox_batches_max"),
            (self.hub_requests_max, "hub_requests_max"),
            (self.read_transactions_max as usize, "read_transactions_max"),
            (self.read_effects_max as usize, "read_effects_max"),
            (self.page_effects_max, "page_effects_max"),
            (self.rebuild_rows_max as usize, "rebuild_rows_max"),
            (self.reads_max, "reads_max"),
        ];
        positive.iter().find(|(value, _)| *value == 0).map(|(_, name)| *name)
    }
}
