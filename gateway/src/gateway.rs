//! The running gateway: pools, hub, pusher and routes, and the order in which they start and stop.

use axum::Router;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use std::collections::HashMap;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_log::EffectLog;
use tidegate_model::Subject;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::auth::{Auth, AuthConfigError};
use crate::config::{Config, Limits};
use crate::http::Operations;
use crate::hub::Hub;
use crate::push::{PushStartError, Pusher};
use crate::readiness::Readiness;
use crate::session::SessionBounds;
use crate::socket;

/// Why a gateway does not start or serve.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// A limit is zero.
    #[error("limit {0} must not be zero")]
    Limit(&'static str),
    /// The connection string is not one. Its text is not repeated here.
    #[error("the database's connection string is not usable")]
    DatabaseUrl,
    /// Nobody could connect.
    #[error("tokens: {0}")]
    Auth(#[from] AuthConfigError),
    /// Pushes cannot run as configured.
    #[error("pushes: {0}")]
    Push(#[from] PushStartError),
    /// The metrics recorder is somebody else's.
    #[error("{0}")]
    Metrics(#[from] crate::metrics::RecorderTaken),
    /// The address cannot be listened on, or accepting failed.
    #[error("listen: {0}")]
    Listen(#[from] std::io::Error),
}

/// What every socket of this process shares.
#[derive(Debug)]
pub(crate) struct Shared {
    pub hub: Hub,
    pub auth: Auth,
    pub pusher: Option<Pusher>,
    pub limits: Limits,
    pub session: Arc<SessionBounds>,
    /// Sessions that are beginning.
    pub beginning: Semaphore,
    /// True once this gateway drains.
    pub draining: watch::Receiver<bool>,
    /// For resumes, rebuilds and look-ups.
    pub reads: PgPool,
    pub sockets: Sockets,
}

/// Open sockets, by subject.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    total: AtomicUsize,
    by_subject: Mutex<HashMap<Subject, usize>>,
}

impl Sockets {
    pub fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    pub fn opened(&self) {
        let total = self.total.fetch_add(1, Ordering::Relaxed) + 1;
        metrics::gauge!("tidegate_sockets").set(total as f64);
    }

    pub fn closed(&self) {
        let total = self.total.fetch_sub(1, Ordering::Relaxed) - 1;
        metrics::gauge!("tidegate_sockets").set(total as f64);
    }

    /// Counts one more of the subject, unless there are `max`.
    pub fn admit(&self, subject: &Subject, max: usize) -> bool {
        let mut by_subject = self.by_subject.lock().unwrap_or_else(PoisonError::into_inner);
        let count = by_subject.entry(subject.clone()).or_default();
        if *count >= max && !subject.is_anonymous() {
            return false;
        }
        *count += 1;
        true
    }

    pub fn dismiss(&self, subject: &Subject) {
        let mut by_subject = self.by_subject.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_subject.get_mut(subject) {
            *count -= 1;
            if *count == 0 {
                by_subject.remove(subject);
            }
        }
    }
}

/// A gateway that follows the log. Dropping it ends the hub.
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
    operations: Operations,
    drain: watch::Sender<bool>,
    hub: JoinHandle<()>,
    pools: [PgPool; 2],
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.hub.abort();
    }
}

/// Longest wait for a connection of a pool.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest statement of ours; a tail read or a page takes milliseconds.
const STATEMENT_TIMEOUT: &str = "30s";

fn pool(url: &str, connections: u32, application: &str) -> Result<PgPool, GatewayError> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|_| GatewayError::DatabaseUrl)?
        .application_name(application)
        .options([("statement_timeout", STATEMENT_TIMEOUT)]);
    Ok(PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .after_connect(|connection, _| {
            Box::pin(async move {
                sqlx::raw_sql(EffectLog::CONNECTION_SETTINGS).execute(connection).await.map(drop)
            })
        })
        .connect_lazy_with(options))
}

impl Gateway {
    /// Starts everything but the listener. The database need not be reachable, nor its stream started: until it is, sessions are
    /// answered `unavailable`. Only pushes are checked now: their roles must be right.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub async fn start(config: Config) -> Result<Gateway, GatewayError> {
        let limits = config.limits;
        if let Some(limit) = limits.problem() {
            return Err(GatewayError::Limit(limit));
        }
        let auth = Auth::new(config.auth)?;
        let metrics = crate::metrics::install()?;
        // One for the tail, one for the listener: neither ever waits for sessions.
        let tail = pool(&config.database_url, 2, "tidegate gateway tail")?;
        let reads = pool(&config.database_url, limits.reads_max as u32, "tidegate gateway reads")?;
        let session = Arc::new(limits.session(config.push.as_ref()));
        let pusher = match config.push {
            Some(push) => Some(Pusher::start(push).await?),
            None => None,
        };
        let (hub, running) = Hub::new(tail.clone(), reads.clone(), limits.hub());
        let (drain, draining) = watch::channel(false);
        let readiness = Arc::new(Readiness::new(reads.clone(), config.readiness));
        let shared = Arc::new(Shared {
            hub,
            auth,
            pusher,
            limits,
            session,
            beginning: Semaphore::new(limits.beginning_max),
            draining,
            reads: reads.clone(),
            sockets: Sockets::default(),
        });
        Ok(Gateway {
            shared,
            operations: Operations { readiness, metrics },
            drain,
            hub: tokio::spawn(running),
            pools: [tail, reads],
        })
    }

    /// Waits until the stream is followed, so that sessions can begin.
    pub async fn followed(&self) {
        self.shared.hub.clone().followed().await;
    }

    /// All routes of the gateway. One router decides: there is no other path to a socket than the one it matches.
    pub fn router(&self) -> Router {
        socket::router(self.shared.clone()).merge(crate::http::router(self.operations.clone()))
    }

    /// Serves `router` (usually [`Self::router`] with more pages) until `shutdown` completes, then drains: clients are told to
    /// reconnect elsewhere, spread over a while, and their sockets closed.
    ///
    /// # Errors
    /// [`GatewayError::Listen`].
    pub async fn serve(
        self,
        listener: TcpListener,
        router: Router,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), GatewayError> {
        let drain = self.drain.clone();
        let signal = async move {
            shutdown.await;
            tracing::info!("draining");
            drain.send_replace(true);
        };
        let mut draining = self.drain.subscribe();
        let timeout = self.shared.limits.drain_timeout;
        let deadline = async move {
            let _ = draining.wait_for(|draining| *draining).await;
            tokio::time::sleep(timeout).await;
        };
        let listener = axum::serve::ListenerExt::tap_io(listener, |stream| {
            // One write is one flush of everything queued: nothing is gained by waiting for more.
            let _ = stream.set_nodelay(true);
        });
        tokio::select! {
            served = axum::serve(listener, router).with_graceful_shutdown(signal) => served?,
            () = deadline => tracing::warn!("some sockets did not close in time"),
        }
        // Upgraded sockets are not the server's any more.
        let closed = async {
            while self.shared.sockets.total() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = tokio::time::timeout(timeout, closed).await;
        if let Some(pusher) = &self.shared.pusher {
            pusher.close().await;
        }
        self.hub.abort();
        for pool in &self.pools {
            pool.close().await;
        }
        Ok(())
    }
}

/// Starts a gateway and serves its own routes at the configured address until `shutdown` completes.
///
/// # Errors
/// [`GatewayError`].
pub async fn serve(
    config: Config,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), GatewayError> {
    let listener = TcpListener::bind(config.listen).await?;
    let gateway = Gateway::start(config).await?;
    let router = gateway.router();
    gateway.serve(listener, router, shutdown).await
}
