//! Who may run: as many as there are connections, of one subject fewer, and a bounded number that waits a bounded time.
//!
//! A push may wait for a row that somebody else has locked. What one subject can make wait is therefore less than there is: its
//! pushes wait for each other first, and only then for a connection.

use super::failure::unavailable;
use super::reply::{PushError, RETRY_MS};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_model::Subject;
use tidegate_protocol::ErrorCode;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

pub(super) struct Admission {
    running: Semaphore,
    waiting: AtomicUsize,
    waiting_max: usize,
    wait_max: Duration,
    /// Those with a push that runs or waits.
    subjects: Mutex<HashMap<Subject, Present>>,
    subject_running_max: usize,
    /// Half of the queue is for the others.
    subject_waiting_max: usize,
}

struct Present {
    running: Arc<Semaphore>,
    pushes: usize,
}

/// A place among those that run. Given back when dropped.
pub(super) struct Place<'a> {
    _subject: tokio::sync::OwnedSemaphorePermit,
    _running: SemaphorePermit<'a>,
    _present: Counted<'a>,
}

/// Counts a subject's push for as long as it runs or waits.
struct Counted<'a> {
    admission: &'a Admission,
    subject: Subject,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let mut subjects = self.admission.subjects.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(present) = subjects.get_mut(&self.subject) {
            present.pushes -= 1;
            if present.pushes == 0 {
                subjects.remove(&self.subject);
            }
        }
    }
}

/// Counts one who waits, for as long as it does, also when its socket goes away meanwhile.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn of_subject() -> PushError {
    let message = "too many pushes of this subject are under way";
    PushError::retry_after(ErrorCode::RateLimited, message, RETRY_MS)
}

impl Admission {
    pub(super) fn new(
        running_max: u32,
        subject_running_max: u32,
        waiting_max: usize,
        wait_max: Duration,
    ) -> Admission {
        // One connection at least is for the others, where there is more than one.
        let of_one = subject_running_max.min(running_max - 1).max(1);
        Admission {
            running: Semaphore::new(running_max as usize),
            waiting: AtomicUsize::new(0),
            waiting_max,
            wait_max,
            subjects: Mutex::default(),
            subject_running_max: of_one as usize,
            subject_waiting_max: waiting_max.div_ceil(2),
        }
    }

    /// A place among those that run, or a named refusal.
    pub(super) async fn enter(&self, subject: &Subject) -> Result<Place<'_>, PushError> {
        let (present, own, pushes) = self.arrive(subject);
        if let Ok(own) = own.clone().try_acquire_owned()
            && let Ok(running) = self.running.try_acquire()
        {
            return Ok(Place { _subject: own, _running: running, _present: present });
        }
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        if before >= self.waiting_max {
            let message = "too many pushes are waiting";
            return Err(PushError::retry_after(ErrorCode::Unavailable, message, RETRY_MS));
        }
        if pushes > self.subject_running_max + self.subject_waiting_max {
            return Err(of_subject());
        }
        let deadline = Instant::now() + self.wait_max;
        let own = match tokio::time::timeout_at(deadline, own.acquire_owned()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(unavailable()),
            Err(_) => return Err(of_subject()),
        };
        match tokio::time::timeout_at(deadline, self.running.acquire()).await {
            Ok(Ok(running)) => Ok(Place { _subject: own, _running: running, _present: present }),
            Ok(Err(_)) => Err(unavailable()),
            Err(_) => Err(PushError::retry_after(ErrorCode::Unavailable, "pushes take too long", RETRY_MS)),
        }
    }

    /// Counts one more push of the subject; gives its own places, and how many pushes it has now.
    fn arrive(&self, subject: &Subject) -> (Counted<'_>, Arc<Semaphore>, usize) {
        let mut subjects = self.subjects.lock().unwrap_or_else(PoisonError::into_inner);
        let present = subjects.entry(subject.clone()).or_insert_with(|| Present {
            running: Arc::new(Semaphore::new(self.subject_running_max)),
            pushes: 0,
        });
        present.pushes += 1;
        let (running, pushes) = (present.running.clone(), present.pushes);
        (Counted { admission: self, subject: subject.clone() }, running, pushes)
    }
}
