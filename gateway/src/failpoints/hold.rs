//! What a test holds up, and how it lets go.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Semaphore, mpsc};

struct Rule {
    id: u64,
    point: &'static str,
    /// `None`: whoever comes.
    whom: Option<String>,
    arrived: mpsc::UnboundedSender<()>,
    pass: Arc<Semaphore>,
}

static RULES: Mutex<Vec<Rule>> = Mutex::new(Vec::new());

fn rules() -> MutexGuard<'static, Vec<Rule>> {
    RULES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds up everybody who comes to a point of this process, until they are let go or the value is dropped.
#[derive(Debug)]
pub struct Hold {
    id: u64,
    arrivals: mpsc::UnboundedReceiver<()>,
    pass: Arc<Semaphore>,
}

impl Hold {
    /// Whoever comes to `point`.
    pub fn at(point: &'static str) -> Hold {
        Hold::new(point, None)
    }

    /// Only what is done on behalf of this subject.
    pub fn of(point: &'static str, subject: &str) -> Hold {
        Hold::new(point, Some(subject.to_owned()))
    }

    fn new(point: &'static str, whom: Option<String>) -> Hold {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (arrived, arrivals) = mpsc::unbounded_channel();
        let pass = Arc::new(Semaphore::new(0));
        rules().push(Rule { id, point, whom, arrived, pass: pass.clone() });
        Hold { id, arrivals, pass }
    }

    /// Waits until the next one has come and waits.
    pub async fn reached(&mut self) {
        // The rule, which holds the sender, is there for as long as this value is.
        let _ = self.arrivals.recv().await;
    }

    /// Lets one go: who waits, or who comes next.
    pub fn let_one_go(&self) {
        self.pass.add_permits(1);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        rules().retain(|rule| rule.id != self.id);
        self.pass.close();
    }
}

/// Comes to a point on behalf of `whom`.
pub(crate) async fn reach(point: &'static str, whom: &str) {
    let pass = {
        let rules = rules();
        let here = |rule: &&Rule| rule.point == point && rule.whom.as_deref().is_none_or(|of| of == whom);
        let Some(rule) = rules.iter().find(here) else { return };
        let _ = rule.arrived.send(());
        rule.pass.clone()
    };
    // Closed once the hold is dropped: everybody goes on.
    if let Ok(permit) = pass.acquire().await {
        permit.forget();
    }
}
