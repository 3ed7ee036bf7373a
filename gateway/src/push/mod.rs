//! Mutations: from a client's `push` to durable outcomes, in one round trip to PostgreSQL (V3, F5, F6).
//!
//! ```text
//! Push ─ prepare ─ tidegate.push ─ PushReply          prepare: pure       tidegate.push: migrations/sql/0009_push.sql
//! ```
//!
//! It publishes nothing (V1): what an accepted mutation changed reaches clients by the WAL alone. It keeps nothing that a restart
//! would lose: numbers, outcomes and fences are in PostgreSQL, so a push whose answer was lost is simply sent again.
//!
//! What it needs in the database, once: the application's role, a login role that may act as it and nothing else, and their rights.
//!
//! ```sql
//! create role gateway login noinherit password '…'; grant app to gateway;
//! select tidegate.grant_push('gateway', array['app']::name[]);   -- as the owner of schema tidegate
//! ```
//!
//! For the session: one [`ClientPusher`] per socket, from [`Pusher::client`]; its methods take `&mut self`, because a client's pushes
//! run one after the other. Call [`hello`] before `welcome`, also where no pushes are taken; answer frames with [`PushReply`]. Mutation rates and sockets
//! per subject are the session's to limit. Nothing else is needed.

mod admission;
mod failure;
mod fingerprint;
mod prepare;
mod reply;
mod run;
mod settle;
mod sqlstate;
mod start;
mod target;
mod text;
mod transact;

pub use reply::{ConflictNow, PushError, PushReply};
pub use settle::{ClientHello, ClientMarks, hello};

use crate::auth::Identity;
use run::Runner;
use sqlx::postgres::PgConnectOptions;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tidegate_model::ClientId;
use tidegate_protocol::{ErrorCode, Push, Void};

/// How pushes run.
#[derive(Clone)]
pub struct PushConfig {
    /// The login role's connection: NOINHERIT, a member of the roles below, with the rights of `tidegate.grant_push`.
    pub connect: PgConnectOptions,
    /// The database role that the application's statements run as.
    pub role: String,
    /// The role for anonymous subjects; `None`: they may not write.
    pub anonymous_role: Option<String>,
    /// Connections of our own: pushes and reads never wait for each other.
    pub connections_max: u32,
    /// Pushes of one subject that run at once, all anonymous ones together being one; further ones wait for them. At least one
    /// connection is left to others, where there is more than one.
    pub subject_running_max: u32,
    /// Pushes that may wait for a connection; more are answered `unavailable` at once.
    pub queue_max: usize,
    /// Longest wait for a connection.
    pub queue_wait: Duration,
    /// `statement_timeout` of one push.
    pub timeout: Duration,
    /// `lock_timeout` of one push: longest wait for a row that another transaction has locked. Then it is answered `unavailable`.
    pub lock_timeout: Duration,
    /// Most mutations in one push.
    pub batch_mutations_max: u32,
    /// Most accepted mutations of one client that are not yet materialized (V2). At least `batch_mutations_max`.
    pub unmaterialized_max: u32,
    /// How long a materialized write fence is kept for sockets that lag.
    pub fence_keep: Duration,
}

impl PushConfig {
    /// Defaults that fit a small server.
    pub fn new(connect: PgConnectOptions, role: impl Into<String>) -> PushConfig {
        PushConfig {
            connect,
            role: role.into(),
            anonymous_role: None,
            connections_max: 16,
            subject_running_max: 4,
            queue_max: 1024,
            queue_wait: Duration::from_secs(3),
            timeout: Duration::from_secs(10),
            lock_timeout: Duration::from_secs(2),
            batch_mutations_max: 200,
            unmaterialized_max: 1000,
            fence_keep: Duration::from_secs(3600),
        }
    }
}

impl fmt::Debug for PushConfig {
    /// Without the connection, which has a password (Q1).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushConfig")
            .field("role", &self.role)
            .field("anonymous_role", &self.anonymous_role)
            .field("connections_max", &self.connections_max)
            .field("queue_max", &self.queue_max)
            .finish_non_exhaustive()
    }
}

/// Why pushes cannot run as configured. Start no server then.
#[derive(Debug, thiserror::Error)]
pub enum PushStartError {
    /// A limit is zero, or the limits contradict each other.
    #[error("check the limits of pushes: {0}")]
    Limits(&'static str),
    /// The database could not be asked.
    #[error("ask the database about the roles of pushes: {0}")]
    Database(String),
    /// A role is missing, or the login role is no member of it.
    #[error(
        "act as role {0} in pushes: the login role may not; create the role, and grant it to the login role"
    )]
    Role(String),
    /// The rights of `tidegate.grant_push` are missing, and the login role may not give them.
    #[error("check the rights of pushes: some are missing; as the owner of schema tidegate run: {0}")]
    Rights(String),
}

/// Runs pushes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pusher {
    runner: Arc<Runner>,
}

impl Pusher {
    /// Checks roles and rights and opens the pool.
    ///
    /// # Errors
    /// [`PushStartError`].
    pub async fn start(config: PushConfig) -> Result<Pusher, PushStartError> {
        Ok(Pusher { runner: Runner::start(config).await? })
    }

    /// Pushes of one client on one socket. `new`: what its `hello` said.
    pub fn client(&self, identity: Arc<Identity>, client: ClientId, new: bool) -> ClientPusher {
        ClientPusher { runner: self.runner.clone(), identity, client, new, pruned: 0 }
    }

    /// Ends what is idle; pushes under way are finished first.
    pub async fn close(&self) {
        self.runner.close().await;
    }
}

/// The pushes of one client on one socket, in order.
#[derive(Debug)]
pub struct ClientPusher {
    runner: Arc<Runner>,
    identity: Arc<Identity>,
    client: ClientId,
    new: bool,
    /// Highest `acked` up to which outcomes were pruned by this socket.
    pruned: u64,
}

impl ClientPusher {
    /// Runs a push, or tells the outcomes that it already has.
    pub async fn push(&mut self, push: &Push<'_>) -> PushReply {
        let runner = self.runner.clone();
        runner.push(self, push).await
    }

    /// Settles numbers whose outcome the client does not know.
    pub async fn void(&mut self, void: &Void) -> PushReply {
        self.runner.void(self, &void.numbers).await
    }

    /// After a successful `auth`: later pushes run under the new claims. The subject is the same.
    ///
    /// # Errors
    /// `subject_change` if it is not: then nothing has changed.
    pub fn renew(&mut self, identity: Arc<Identity>) -> Result<(), PushError> {
        if identity.subject != self.identity.subject {
            return Err(PushError::new(ErrorCode::SubjectChange, "a session keeps its subject"));
        }
        self.identity = identity;
        Ok(())
    }
}
