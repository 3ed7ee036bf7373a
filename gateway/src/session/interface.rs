//! What goes into a session and what comes out of it.

use std::sync::Arc;
use std::time::Duration;
use tidegate_log::ClientKey;
use tidegate_model::{Lsn, Point, RegistryGeneration};
use tidegate_protocol::{ClientFrame, CloseCode, Push, SessionLimits, Void};
use uuid::Uuid;

use super::{ScopePages, Settled};
use crate::grants::SubjectGrants;
use crate::hub::{Feed, FeedKey, Message, Press};
use crate::push::PushReply;
use crate::rebuild::{RebuildFrom, RebuildPage, RunPosition};
use crate::registry::Registries;

/// Bounds of one session.
#[derive(Clone, Debug)]
pub struct SessionBounds {
    /// What `welcome` tells.
    pub limits: SessionLimits,
    /// `welcome.heartbeat_ms`.
    pub heartbeat: Duration,
    /// Bytes queued for the client beyond which nothing more is read for it.
    pub outbox_bytes_max: usize,
    /// How long a cursor may be ahead of the tail.
    pub ahead_max: Duration,
    /// Told in `capture_pending`.
    pub retry: Duration,
    /// A resume that would replay more effects than the scope has rows, and more than this, becomes a rebuild.
    pub replay_min: u64,
}

/// What sessions of one lineage share.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Makes cursors.
    pub press: Arc<Press>,
    /// Registry generations that pages use: each is here before a page that needs it is.
    pub registries: Arc<Registries>,
    /// Bounds.
    pub bounds: Arc<SessionBounds>,
}

/// What goes in.
#[derive(Debug)]
pub enum Input<'a> {
    /// A frame from the client, after its `hello`.
    Frame(ClientFrame<'a>),
    /// From the hub.
    Message(Message),
    /// Answer to [`Command::ReadScope`].
    ScopeRead(ReadId, ScopePages),
    /// Answer to [`Command::ReadRebuild`].
    RebuildRead(ReadId, RunPosition, Arc<RebuildPage>),
    /// The other answer: the token's run is of another history.
    RunLost(ReadId),
    /// Answer to [`Command::Push`] or [`Command::Void`]: the numbers asked about, and the reply.
    Pushed {
        /// Number of the client's request.
        reference: u64,
        /// `push` or `void`.
        of: &'static str,
        /// All numbers of the request.
        numbers: Vec<u64>,
        /// The reply.
        reply: PushReply,
    },
    /// Answer to [`Command::Settle`].
    Settled(Vec<(u64, Settled)>),
    /// The outbox has been drained below its bound.
    Room,
}

/// One read. An answer whose read nobody waits for any more is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadId(pub(super) u64);

/// What comes out besides frames.
#[derive(Debug)]
pub enum Command {
    /// Ask the hub to feed a scope.
    Attach(FeedKey),
    /// Ask it to stop.
    Detach(FeedKey),
    /// Ask it to bring the session in step.
    Sync {
        /// At once.
        urgent: bool,
    },
    /// Read a scope from the log.
    ReadScope {
        /// To be given back with the answer.
        id: ReadId,
        /// The scope.
        feed: Arc<Feed>,
        /// After here (exclusive).
        after: Point,
        /// Through this transaction.
        through: Lsn,
        /// How far to count what would be replayed; 0 not at all.
        replay_count_max: u64,
    },
    /// Read the next page of a rebuild.
    ReadRebuild(ReadId, Arc<Feed>, RebuildFrom),
    /// Look up what became of these mutations.
    Settle(Vec<u64>),
    /// Run a push. Pushes and voids run one after the other.
    Push(Push<'static>),
    /// Settle numbers.
    Void(Void),
    /// Judge a fresh token.
    Auth {
        /// Number of the request.
        reference: u64,
        /// The token.
        token: String,
    },
    /// Say goodbye and close.
    Close(CloseCode),
}

/// How a session begins: after the `hello` was judged and the hub has registered it.
#[derive(Debug)]
pub struct Beginning {
    /// Its id.
    pub session: Uuid,
    /// Whose.
    pub client: ClientKey,
    /// As the hub follows them.
    pub grants: Arc<SubjectGrants>,
    /// `welcome.last`.
    pub last: u64,
    /// `hello.await`.
    pub awaited: Vec<u64>,
    /// Registry generation in force; read before.
    pub registry: RegistryGeneration,
}
